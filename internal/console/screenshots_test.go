package console_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

var shots = flag.String("screenshots", "", "make screenshots into this `directory`") //nolint:gochecknoglobals // a flag

// TestScreenshots makes the pictures of the documents: make screenshots.
func TestScreenshots(t *testing.T) {
	if *shots == "" {
		t.Skip("make screenshots makes them")
	}
	s := newStage(t)
	s.served.Remember()
	s.incident()
	b := s.openBrowser(1280)
	for _, shot := range []struct{ name, path, wait string }{
		{"overview", "/", "#calls-h"},
		{"queues", "/queues", "table"},
		{"queue", "/queues?queue=orders.saga", "table"},
		{"groups", "/dead", ".group"},
		{"letters", "/dead/letters?queue=orders.saga", "table"},
		{"letter", "/dead/letter?queue=orders.saga&id=pay-1-000", ".timeline"},
		{"audit", "/audit", "main"},
		{"error", "/nope", "main"},
	} {
		for _, size := range []struct {
			name   string
			width  int64
			scheme string
		}{{"", 1280, "light"}, {"-dark", 1280, "dark"}, {"-phone", 390, "light"}, {"-phone-dark", 390, "dark"}} {
			b.resize(size.width)
			b.media(size.scheme)
			b.open(shot.path)
			b.do(chromedp.WaitVisible(chromedp.CSS(shot.wait)))
			png, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(*shots, "console-"+shot.name+size.name+".png"), png, 0o600))
		}
	}
}
