package pg_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// schemaFor returns a schema that is not there yet and is dropped at the end.
func schemaFor(t *testing.T, db testkit.DB) string {
	t.Helper()
	schema := testkit.Name("m")
	t.Cleanup(func() {
		_, err := db.Pool.Exec(context.WithoutCancel(t.Context()), "DROP SCHEMA IF EXISTS "+schema+" CASCADE")
		require.NoError(t, err)
	})
	return schema
}

const migrateVar = "SUREFOOT_TEST_MIGRATE"

// TestMigrateProcess is one of the processes of the next test.
func TestMigrateProcess(t *testing.T) {
	schema := os.Getenv(migrateVar)
	if schema == "" {
		return
	}
	applied, err := pg.Migrate(t.Context(), pg.MigrateOptions{URL: os.Getenv(migrateVar + "_URL"), Schema: schema})
	require.NoError(t, err)
	fmt.Printf("applied=%d\n", len(applied))
}

// Eight processes migrate at once: all succeed, and each step is applied by exactly one.
func TestMigrateByEightProcesses(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	schema := schemaFor(t, db)
	self, err := os.Executable()
	require.NoError(t, err)
	outputs := make([]string, 8)
	var g errgroup.Group
	for i := range outputs {
		g.Go(func() error {
			cmd := exec.CommandContext(t.Context(), self, "-test.run", "^TestMigrateProcess$", "-test.count=1")
			cmd.Env = append(os.Environ(), migrateVar+"="+schema, migrateVar+"_URL="+db.URL)
			out, err := cmd.CombinedOutput()
			outputs[i] = string(out)
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	total := 0
	for _, out := range outputs {
		var n int
		_, err := fmt.Sscanf(out[strings.Index(out, "applied="):], "applied=%d", &n)
		require.NoError(t, err, out)
		total += n
	}
	steps, err := pg.Status(t.Context(), pg.MigrateOptions{URL: db.URL, Schema: schema})
	require.NoError(t, err)
	require.Len(t, steps, total)
	require.NoError(t, pg.CheckVersion(t.Context(), db.Pool, schema))
}

func TestStatusBeforeAndAfter(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	o := pg.MigrateOptions{URL: db.URL, Schema: schemaFor(t, db)}
	before, err := pg.Status(t.Context(), o)
	require.NoError(t, err)
	require.EqualValues(t, len(before), pg.Version())
	for i, step := range before {
		require.EqualValues(t, i+1, step.Version, "steps have no gaps")
		require.False(t, step.Applied)
		require.Zero(t, step.At)
	}
	var there bool
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, o.Schema).Scan(&there))
	require.False(t, there, "Status changes nothing")
	require.ErrorContains(t, pg.CheckVersion(t.Context(), db.Pool, o.Schema), "run `surefoot migrate up`")

	applied, err := pg.Migrate(t.Context(), o)
	require.NoError(t, err)
	require.Len(t, applied, len(before))
	after, err := pg.Status(t.Context(), o)
	require.NoError(t, err)
	for _, step := range after {
		require.True(t, step.Applied)
		require.WithinDuration(t, time.Now(), step.At, time.Hour)
	}
	again, err := pg.Migrate(t.Context(), o)
	require.NoError(t, err)
	require.Empty(t, again)
}

func TestVersionsThatDoNotFit(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	require.NoError(t, pg.CheckVersion(t.Context(), db.Pool, db.Schema))
	exec := func(sql string) {
		_, err := db.Pool.Exec(t.Context(), strings.ReplaceAll(sql, "@", db.Schema))
		require.NoError(t, err)
	}
	exec(`INSERT INTO @.schema_version (version_id, is_applied) VALUES (999, true)`)
	require.ErrorContains(t, pg.CheckVersion(t.Context(), db.Pool, db.Schema), "use a newer surefoot")
	// A database ahead of the binary is left alone.
	applied, err := pg.Migrate(t.Context(), pg.MigrateOptions{URL: db.URL, Schema: db.Schema})
	require.NoError(t, err)
	require.Empty(t, applied)
	exec(`DELETE FROM @.schema_version WHERE version_id > 1`)
	err = pg.CheckVersion(t.Context(), db.Pool, db.Schema)
	require.ErrorContains(t, err, "has version 1")
	require.ErrorContains(t, err, "run `surefoot migrate up`")
	exec(`DELETE FROM @.schema_version WHERE version_id > 0`)
	require.ErrorContains(t, pg.CheckVersion(t.Context(), db.Pool, db.Schema), "not there yet")
}

func TestMigrateRefusesAForeignSchemaName(t *testing.T) {
	t.Parallel()
	_, err := pg.Migrate(t.Context(), pg.MigrateOptions{URL: "postgres://h/d", Schema: `x"; DROP`})
	require.ErrorContains(t, err, "lower-case letters")
}

// An administrator makes the schema; the role that migrates may not create any.
func TestMigrateByARoleWithoutCreate(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	schema, role := schemaFor(t, db), testkit.Name("r")
	exec := func(sql string) {
		_, err := db.Pool.Exec(context.WithoutCancel(t.Context()), sql)
		require.NoError(t, err, sql)
	}
	exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'hunter2'`)
	t.Cleanup(func() { exec(`DROP OWNED BY ` + role + ` CASCADE`); exec(`DROP ROLE ` + role) })
	u := asUser(t, db.URL, role, "hunter2")
	_, err := pg.Migrate(t.Context(), pg.MigrateOptions{URL: u, Schema: schema})
	require.ErrorContains(t, err, "create schema "+schema)
	exec(`CREATE SCHEMA ` + schema + ` AUTHORIZATION ` + role)
	_, err = pg.Migrate(t.Context(), pg.MigrateOptions{URL: u, Schema: schema})
	require.NoError(t, err)
}
