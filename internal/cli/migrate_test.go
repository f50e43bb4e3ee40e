package cli_test

import (
	"encoding/json"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

type step struct {
	Version int
	Applied bool
}

func steps(t *testing.T, r result) (all []step) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &all), r.stdout+r.stderr)
	return all
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	schema := testkit.Name("m")
	defer func() {
		_, err := db.Pool.Exec(t.Context(), "DROP SCHEMA IF EXISTS "+schema+" CASCADE")
		require.NoError(t, err)
	}()
	migrate := func(args ...string) result {
		e := env("")
		e.Environ = []string{"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + schema}
		return run(t, e, append([]string{"migrate"}, args...)...)
	}

	before := migrate("status", "-o", "json")
	require.Equal(t, cli.ExitDiffers, before.code)
	require.Contains(t, before.stderr, "run `surefoot migrate up`")
	all := steps(t, before)
	require.NotEmpty(t, all)
	require.False(t, all[0].Applied)

	dry := migrate("up", "--dry-run", "-o", "json")
	require.Zero(t, dry.code, dry.stderr)
	require.Equal(t, all, steps(t, dry))
	require.Equal(t, cli.ExitDiffers, migrate("status").code, "a dry run has applied something")

	up := migrate("up", "-o", "json")
	require.Zero(t, up.code, up.stderr)
	require.Len(t, steps(t, up), len(all))

	again := migrate("up", "-o", "json")
	require.Zero(t, again.code)
	require.Equal(t, "[]\n", again.stdout)
	require.Equal(t, result{0, "", "schema " + schema + " is up to date\n"}, migrate("up"))
	after := migrate("status", "-o", "json")
	require.Zero(t, after.code)
	require.True(t, steps(t, after)[len(all)-1].Applied)
}

func TestRefusedByTheDatabase(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	wrong, err := url.Parse(db.URL)
	require.NoError(t, err)
	wrong.User = url.UserPassword(wrong.User.Username(), "hunter2")
	got := run(t, env(""), "migrate", "status", "--database-url", wrong.String())
	require.Equal(t, cli.ExitDenied, got.code, got.stderr)
	require.NotContains(t, got.stderr, "hunter2")
	require.Contains(t, got.stderr, "hint: correct user and password in SUREFOOT_DATABASE_URL")
}
