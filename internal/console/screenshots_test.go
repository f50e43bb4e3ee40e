package console_test

import (
	"bytes"
	"cmp"
	"flag"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

var (
	shots = flag.String("screenshots", "", "make the documents' pictures into this `directory`")                      //nolint:gochecknoglobals // a flag
	all   = flag.Bool("screenshots-all", false, "make pictures of all pages, whole, wide and narrow, light and dark") //nolint:gochecknoglobals // a flag
)

// shot is a picture of a page.
type shot struct {
	name, path, wait, scheme string
	width                    int64
}

// TestScreenshots makes the pictures of the documents: make screenshots.
func TestScreenshots(t *testing.T) {
	if *shots == "" {
		t.Skip("make screenshots makes them")
	}
	s := newStage(t)
	s.served.Remember()
	mended := s.incident()
	plan := s.follow("/redrive", "queue", work, "error-contains", "currency", "ramp", "1, 5, 20", "max-failures", "0", "reason", "CHF is enabled since 14:02, OPS-7")
	mended.Store(true)
	run := s.follow("/redrive", "queue", work, "error-contains", "value too long", "ramp", "1, 5", "max-failures", "0", "reason", "column is wider now")
	s.follow("/run/start", "id", runIn(s, run))
	s.see(run, "stopped")
	s.see("/", "2 things to look at")
	b := s.openBrowser(1280)
	if *all {
		for _, page := range []shot{
			{name: "overview", path: "/"},
			{name: "queues", path: "/queues"},
			{name: "queue", path: "/queues?queue=orders.saga"},
			{name: "groups", path: "/dead"},
			{name: "letters", path: "/dead/letters?queue=orders.saga&limit=20"},
			{name: "letter", path: "/dead/letter?queue=orders.saga&id=pay-1-000"},
			{name: "audit", path: "/audit"},
			{name: "error", path: "/nope"},
			{name: "redrive", path: "/redrive?queue=orders.saga"},
			{name: "message", path: "/message?id=pay-1-000"},
			{name: "outbox", path: "/outbox"},
			{name: "sagas", path: "/sagas"},
			{name: "reconcile", path: "/reconcile"},
			{name: "plan", path: plan},
			{name: "run", path: run},
			{name: "runs", path: "/runs"},
			{name: "discard", path: "/dead/discard?queue=orders.saga&error-contains=unknown"},
		} {
			for name, narrow := range map[string]int64{"": 1280, "-phone": 390} {
				for scheme, end := range map[string]string{"light": "", "dark": "-dark"} {
					b.shoot(shot{"all-" + page.name + name + end, page.path, "main", scheme, narrow}, chromedp.FullScreenshot(100))
				}
			}
		}
		return
	}
	for _, picture := range []shot{
		{"overview", "/", ".plot", "light", 1280},
		{"dead", "/dead", ".group", "light", 1280},
		{"plan", plan, "#start", "light", 1280},
		{"run", run, "#processed", "dark", 1280},
		{"phone", "/", ".plot", "dark", 390},
	} {
		size := b.shoot(picture, chromedp.CaptureScreenshot())
		require.Less(t, size, 150_000, "%s is too big for a document", picture.name)
	}
	login := newStage(t, withLogin(t)).openBrowser(640)
	login.shoot(shot{"login", "/", "#password", "light", 640}, chromedp.CaptureScreenshot())
}

// shoot writes a picture, and returns its size.
func (b *browser) shoot(s shot, take chromedp.Action[[]byte]) int {
	b.Helper()
	b.resize(s.width)
	b.media(s.scheme)
	b.open(s.path)
	b.do(chromedp.WaitVisible(chromedp.CSS(s.wait)))
	taken, err := chromedp.Run(b.ctx, take)
	require.NoError(b, err)
	small := fewColours(b, taken)
	require.NoError(b, os.WriteFile(filepath.Join(*shots, "console-"+s.name+".png"), small, 0o644)) //nolint:gosec // a document
	return len(small)
}

// fewColours keeps the 256 that are there most often, and makes the others the nearest of these: pages have few, and the file
// becomes a third.
func fewColours(b *browser, picture []byte) []byte {
	b.Helper()
	decoded, err := png.Decode(bytes.NewReader(picture))
	require.NoError(b, err)
	bounds, counts := decoded.Bounds(), map[color.RGBA]int{}
	at := func(x, y int) color.RGBA { return color.RGBAModel.Convert(decoded.At(x, y)).(color.RGBA) }
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			counts[at(x, y)]++
		}
	}
	var found []color.RGBA
	for c := range counts {
		found = append(found, c)
	}
	slices.SortFunc(found, func(a, b color.RGBA) int {
		return cmp.Or(counts[b]-counts[a], cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	var palette color.Palette
	for _, c := range found[:min(len(found), 256)] {
		palette = append(palette, c)
	}
	index, small := map[color.RGBA]uint8{}, image.NewPaletted(bounds, palette)
	for _, c := range found {
		index[c] = uint8(palette.Index(c))
	}
	for y := range bounds.Dy() {
		for x := range bounds.Dx() {
			small.SetColorIndex(x, y, index[at(x, y)])
		}
	}
	var out bytes.Buffer
	require.NoError(b, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&out, small))
	return out.Bytes()
}
