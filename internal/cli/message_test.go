package cli_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/internal/timeline"
)

type shown struct {
	timeline.Timeline
	Payloads []struct{ Place, Text, Encoding string }
}

func (s *dlqStage) message(args ...string) (result, shown) {
	s.Helper()
	got := run(s.T, s.env(), append([]string{"message", "show", "-o", "json"}, args...)...)
	var m shown
	if got.code == 0 {
		require.NoError(s, json.Unmarshal([]byte(got.stdout), &m))
	}
	return got, m
}

// One message's way from the outbox to its second redrive, as the command tells it at each point.
func TestMessageShow(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	none, _ := s.message("m-1")
	require.Equal(t, cli.ExitFailed, none.code)
	require.Contains(t, none.stderr, "published, or never enqueued")
	require.Contains(t, none.stderr, "surefoot dlq groups --scan")
	bad, _ := s.message("")
	require.Equal(t, cli.ExitUsage, bad.code)

	add := env(dlqConfig)
	add.Environ = s.env().Environ
	add.Stdin = strings.NewReader(`{"id":"m-1","type":"order.paid","key":"o-1","payload":{"card":"4111 \u001b[31m"}}` + "\n")
	require.Zero(t, run(t, add, "outbox", "add", "--allow-unroutable").code)
	got, m := s.message("m-1")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, []string{"in the outbox, pending: no relay is running"}, m.Places)
	require.NotContains(t, got.stdout, "4111")
	_, m = s.message("m-1", "--payload", "all")
	require.Contains(t, m.Payloads[0].Text, "4111")
	_, err := s.db.Pool.Exec(t.Context(), "DELETE FROM "+s.db.Schema+".outbox") // as the relay does
	require.NoError(t, err)

	s.letter("m-1", "order.paid", "\x1b[31mred 503")
	require.Zero(t, s.run("groups", "--scan").code)
	got, m = s.message("m-1")
	require.Equal(t, []string{"in orders.saga.dlq"}, m.Places, got.stderr)
	told := way(m)
	require.Contains(t, told, "outbox: published")
	require.Contains(t, told, "message: attempt 5 failed")
	require.NotContains(t, got.stdout, `{\"text`, "no payload unless it is asked for")
	require.NotContains(t, got.stdout, "\x1b")
	_, m = s.message("m-1", "--payload", "10")
	require.Equal(t, `{"text":"`, m.Payloads[0].Text[:9])
	_, m = s.message("m-1", "--look=false")
	require.NotContains(t, way(m), "message: attempt 5 failed")
	require.Contains(t, strings.Join(m.Unknown, "\n"), "--look=false")
	table := run(t, s.env(), "message", "show", "m-1", "--payload", "all")
	require.Zero(t, table.code, table.stderr)
	require.NotContains(t, table.stdout, "\x1b")
	for _, want := range []string{"Not known:", "attempt 5 failed", `\x1b[31mred`, "When it was published"} {
		require.Contains(t, table.stdout, want)
	}

	require.Zero(t, s.run("redrive", "--queue", "orders.saga", "--yes").code)
	_, m = s.message("m-1")
	require.Contains(t, strings.Join(m.Places, "\n"), "sent to orders.saga by run")
	require.Subset(t, way(m), []string{"run: in a redrive", "dlq index: left the dead-letter queue", "audit: dlq redrive"})
	require.Empty(t, m.Letters)

	nobroker := s.env()
	nobroker.Environ = nobroker.Environ[:2]
	require.Zero(t, run(t, nobroker, "message", "show", "m-1").code, "the database alone is enough")
}

func way(m shown) []string {
	all := make([]string, len(m.Steps))
	for i, s := range m.Steps {
		all[i] = string(s.Store) + ": " + s.What
	}
	return all
}

// Whatever keeps a look from happening is said, and the rest is told.
func TestMessageShowWithoutALook(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	s.letter("m-1", "order.paid", "503")
	require.Zero(t, s.run("groups", "--scan").code)
	nobroker := s.env()
	nobroker.Environ = nobroker.Environ[:2]
	got := run(t, nobroker, "message", "show", "m-1")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "Its attempts, which stand in the message in orders.saga.dlq")
	_, err := s.db.Pool.Exec(t.Context(), "UPDATE "+s.db.Schema+".dlq_letters SET copies = 10001")
	require.NoError(t, err)
	_, m := s.message("m-1")
	require.Contains(t, strings.Join(m.Unknown, "\n"), "--look walks over them")
	_, m = s.message("m-1", "--look")
	require.Contains(t, way(m), "message: attempt 5 failed")
	_, err = s.ch.QueuePurge("orders.saga.dlq", false)
	require.NoError(t, err)
	testkit.Eventually(t, 10*time.Second, "an empty queue", func() bool { return s.depth("orders.saga.dlq") == 0 })
	_, m = s.message("m-1", "--look")
	require.Contains(t, strings.Join(m.Unknown, "\n"), "not there any more")
}
