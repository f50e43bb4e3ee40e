package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
)

func TestDLQEdit(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	s.letter("one", "order.paid", "x")
	file := filepath.Join(t.TempDir(), "body.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"text":"y\u001b"}`), 0o600))
	args := []string{"edit", "--queue", "orders.saga", "--id", "one", "--body", file, "--header", "tenant=other", "--reason", "ticket 4711"}
	require.Equal(t, cli.ExitUsage, s.run(args[:len(args)-2]...).code, "no reason")
	require.Equal(t, cli.ExitUsage, s.run(append(args, "--header", "sf-key=x", "--yes")...).code)
	require.Equal(t, cli.ExitUsage, s.run("edit", "--queue", "orders.saga", "--id", "one", "--reason", "x", "--yes").code, "nothing to change")
	require.Equal(t, cli.ExitFailed, s.run("edit", "--queue", "orders.saga", "--id", "none", "--reason", "x", "--header", "a=b", "--yes").code)
	got := s.run(append(args, "--dry-run")...)
	require.Zero(t, got.code, got.stderr)
	require.Regexp(t, `(?m)^body.text +"x" -> "y`, got.stdout)
	require.NotContains(t, got.stdout, "\x1b")
	got = s.run(args...)
	require.Equal(t, cli.ExitUsage, got.code)
	require.Contains(t, got.stderr, "replace 1 message of orders.saga.dlq by ")
	require.Equal(t, 1, s.depth("orders.saga.dlq"))
	got = s.run(append(args, "--yes", "-o", "name")...)
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, []int{1, 0}, []int{s.depth("orders.saga"), s.depth("orders.saga.dlq")})
	message, ok, err := s.ch.Get("orders.saga", true)
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, strings.TrimSpace(got.stdout), message.MessageId)
	require.Equal(t, "other", message.Headers["tenant"])
}
