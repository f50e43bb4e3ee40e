package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
)

func TestDLQDiscardRestoreExportImportAndAudit(t *testing.T) {
	t.Parallel()
	s := newDLQStage(t)
	s.letter("one", "order.paid", "x\u202ey")
	s.letter("two", "order.paid", "y")

	exported := s.run("export", "--queue", "orders.saga")
	require.Zero(t, exported.code, exported.stderr)
	require.Equal(t, 2, strings.Count(exported.stdout, "\n"))
	require.NotContains(t, exported.stdout, "\u202e", "escaped, and the same to every reader of JSON")
	require.Contains(t, exported.stderr, "exported 2 messages")

	discarded := s.run("discard", "--queue", "orders.saga", "--reason", "test", "--yes", "--as", "ann", "-o", "json")
	require.Zero(t, discarded.code, discarded.stderr)
	require.Zero(t, s.depth("orders.saga.dlq"))
	var result struct{ Run string }
	require.NoError(t, json.Unmarshal([]byte(discarded.stdout), &result))

	require.Equal(t, cli.ExitUsage, s.run("restore", "--queue", "orders.saga").code, "neither an operation nor ids")
	require.Equal(t, cli.ExitUsage, s.run("restore", "--queue", "orders.saga", "--operation", "x").code)
	got := s.run("restore", "--queue", "orders.saga", "--operation", result.Run)
	require.Equal(t, cli.ExitUsage, got.code)
	require.Contains(t, got.stderr, "restore 2 messages of orders.saga.dlq?")
	got = s.run("restore", "--queue", "orders.saga", "--operation", result.Run, "--dry-run")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, "would be restored  2")
	got = s.run("restore", "--queue", "orders.saga", "--operation", result.Run, "--id", "two", "--yes", "--as", "bob")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, 1, s.depth("orders.saga.dlq"))

	file := filepath.Join(t.TempDir(), "letters.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(exported.stdout), 0o600))
	got = s.run("import", file)
	require.Equal(t, cli.ExitUsage, got.code)
	require.Contains(t, got.stderr, "import 2 messages into orders.saga.dlq (2)?")
	got = s.run("import", file, "--yes", "-o", "json")
	require.Zero(t, got.code, got.stderr)
	require.Contains(t, got.stdout, `"done": 2`)
	require.Equal(t, 3, s.depth("orders.saga.dlq"))
	require.Equal(t, cli.ExitUsage, s.run("import", filepath.Join(t.TempDir(), "none"), "--yes", "--queue", "a/b", "x").code)
	env := s.env()
	env.Stdin = strings.NewReader("nonsense\n")
	got = run(t, env, "dlq", "import", "-", "--yes")
	require.Equal(t, cli.ExitUsage, got.code)
	require.Contains(t, got.stderr, "line 1")

	got = run(t, s.env(), "audit", "ls", "--operation", result.Run, "-o", "json")
	require.Zero(t, got.code, got.stderr)
	var entries []map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.stdout), &entries))
	require.Len(t, entries, 4)
	require.Equal(t, []any{"ann", "dlq discard", "orders.saga.dlq", "finished", "test"},
		[]any{entries[0]["who"], entries[0]["action"], entries[0]["target"], entries[0]["outcome"], entries[0]["reason"]})
	require.Contains(t, entries[0]["origin"], "surefoot ")
	got = run(t, s.env(), "audit", "ls", "--message", "two", "--action", "dlq")
	require.Zero(t, got.code, got.stderr)
	require.Equal(t, 4, strings.Count(got.stdout, "\n"), "title, discarded, restored, imported: %s", got.stdout)
	got = run(t, s.env(), "audit", "ls", "--who", "bob", "--operations", "-o", "jsonl")
	require.Equal(t, 2, strings.Count(got.stdout, "\n"))
	require.Equal(t, cli.ExitUsage, run(t, s.env(), "audit", "ls", "--since", "yesterday").code)
	require.Equal(t, "[]\n", run(t, s.env(), "audit", "ls", "--target", "nothing", "-o", "json").stdout)
}
