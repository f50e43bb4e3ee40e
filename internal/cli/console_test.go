package cli_test

import (
	"context"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

const consoleYAML = `
topology:
  exchange: shop.events
  queues:
    - {name: orders.saga, bindings: [order.created]}
watchdog:
  rules:
    - {name: STUCK, table: public.sagas, key: id, status: status, stuck: [STUCK], clock: since, limit: 10m, new_status: GIVEN_UP, reason: TOO_LONG, event_type: saga.given-up}
reconcile:
  rules:
    - name: DOUBT
      table: public.sagas
      key: id
      status: status
      clock: since
      suspects: [STUCK]
      age: 10m
      authority: {sql: "SELECT 'fine'"}
      answers: {gone: {new_status: GIVEN_UP, reason: TOO_LONG, event_type: saga.given-up}}
`

// The command serves until it is stopped, also when neither database nor broker is there.
func TestConsole(t *testing.T) {
	t.Parallel()
	e := env(consoleYAML)
	e.Environ = []string{"SUREFOOT_DATABASE_URL=postgres://nobody:secret@127.0.0.1:1/none", "SUREFOOT_AMQP_URL=amqp://nobody:secret@127.0.0.1:1/"}
	var stdout, stderr testkit.Buffer
	e.Stdout, e.Stderr = &stdout, &stderr
	ctx, stop := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() { code <- cli.Main(ctx, []string{"console", "--listen", "127.0.0.1:0"}, e) }()
	var address []string
	testkit.Eventually(t, 20*time.Second, "an address", func() bool {
		address = regexp.MustCompile(`http://127\.0\.0\.1:\d+/`).FindStringSubmatch(stderr.String())
		return address != nil
	})
	get := func(path string) string {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address[0]+path, http.NoBody)
		require.NoError(t, err)
		request.Close = true
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return string(body)
	}
	testkit.Eventually(t, 20*time.Second, "what is missing", func() bool {
		page := get("")
		return strings.Contains(page, "PostgreSQL does not answer") && strings.Contains(page, "RabbitMQ does not answer")
	})
	require.Contains(t, get("queues"), "orders.saga")
	require.NotContains(t, get(""), "secret")
	stop()
	require.Zero(t, <-code, stderr.String())
	require.Empty(t, stdout.String())
	require.NotContains(t, stderr.String(), "secret")
}

func TestConsoleListensOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	e := env(consoleYAML)
	e.Environ = []string{"SUREFOOT_DATABASE_URL=postgres://nobody@127.0.0.1:1/none", "SUREFOOT_AMQP_URL=amqp://nobody:secret@127.0.0.1:1/"}
	for _, listen := range []string{"0.0.0.0:9465", ":9465", "192.168.1.7:9465", "nonsense"} {
		got := run(t, e, "console", "--listen", listen)
		require.Equal(t, cli.ExitUsage, got.code, listen)
	}
	require.Contains(t, run(t, e, "console", "--listen", "0.0.0.0:9465").stderr, "there is no login")
	e.Environ = append(e.Environ, "SUREFOOT_CONSOLE_LISTEN=0.0.0.0:9465")
	got := run(t, e, "console")
	require.Equal(t, cli.ExitUsage, got.code)
	require.Contains(t, got.stderr, "console.listen")
	require.Contains(t, got.stderr, "there is no login")
}
