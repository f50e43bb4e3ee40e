package app_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// The console is a role that works while the database is away, for that is when it is looked at.
func TestTheConsoleWaitsForNobody(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	network := testkit.Proxy(t, db.URL)
	c := settings(db)
	c.Database.URL, c.AMQP.URL, c.Console.Listen = config.URL(network.Through(t, db.URL)), "amqp://nobody:secret@127.0.0.1:1/", "127.0.0.1:0"
	c.Database.Source, c.AMQP.Source = c.Database.URL, c.AMQP.URL // as loading it does
	network.Cut()
	addr := make(chan string, 1)
	logger := zerolog.New(io.MultiWriter(testkit.LogWriter(t), served(addr)))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- app.Run(ctx, app.Options{Config: c, Roles: []string{"console"}, Logger: logger, Version: "v9"})
	}()
	base := "http://"
	select {
	case at := <-addr:
		base += at
	case err := <-done:
		require.FailNow(t, "it does not serve", "%v", err)
	}
	testkit.Eventually(t, patience, "the page says what is missing", func() bool {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+"/", http.NoBody)
		require.NoError(t, err)
		request.Close = true
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return strings.Contains(string(body), "PostgreSQL does not answer")
	})
	stop()
	require.NoError(t, <-done)
}

// served finds the address in the log.
type served chan string

// Write implements io.Writer.
func (s served) Write(line []byte) (int, error) {
	if text := string(line); strings.Contains(text, "console is served") {
		_, rest, _ := strings.Cut(text, `"addr":"`)
		addr, _, _ := strings.Cut(rest, `"`)
		s <- addr
	}
	return len(line), nil
}
