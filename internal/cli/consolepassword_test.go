package cli_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/access"
	"github.com/surefoot-mq/surefoot/internal/cli"
)

func TestHashPassword(t *testing.T) {
	t.Parallel()
	const password = "correct horse battery"
	hash := func(stdin string, args ...string) result {
		e := env("")
		e.Stdin = strings.NewReader(stdin)
		return run(t, e, append([]string{"console", "hash-password"}, args...)...)
	}
	got := hash(password+"\nanother line\n", "--name", "ann", "--role", "operate")
	require.Equal(t, cli.ExitDone, got.code, got.stderr)
	require.Empty(t, got.stderr)
	require.True(t, strings.HasPrefix(got.stdout, "ann:operate:$2a$"), got.stdout)
	require.Equal(t, 1, strings.Count(got.stdout, "\n"))
	path := t.TempDir() + "/users"
	require.NoError(t, os.WriteFile(path, []byte(got.stdout), 0o600))
	_, err := access.New(access.Options{UsersFile: path, ReadFile: os.ReadFile})
	require.NoError(t, err)
	for _, wrong := range [][]string{
		{password, "--name", "ann", "--role", "boss"},
		{password, "--name", "a:b", "--role", "view"},
		{password, "--name", "ann"},
		{password, "--role", "view"},
		{"short", "--name", "ann", "--role", "view"},
		{strings.Repeat("x", 73), "--name", "ann", "--role", "view"},
		{"", "--name", "ann", "--role", "view"},
		{password, "--name", "ann", "--role", "view", password},
	} {
		got := hash(wrong[0], wrong[1:]...)
		require.Equal(t, cli.ExitUsage, got.code, wrong)
		require.Empty(t, got.stdout)
	}
}
