package pg_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// catalogSQL is everything that a migration can make, as text.
const catalogSQL = `
SELECT format('%s %s', c.relkind, c.relname) || coalesce(' ' || pg_get_indexdef(c.oid), '') FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
    WHERE c.relnamespace = $1::regnamespace AND (c.relkind <> 'i' OR i.indexrelid IS NOT NULL)
UNION ALL SELECT format('column %s.%s %s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid))
    FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    WHERE c.relnamespace = $1::regnamespace AND a.attnum > 0 AND NOT a.attisdropped
UNION ALL SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = $1::regnamespace
UNION ALL SELECT 'function ' || pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = $1::regnamespace AND prokind = 'f'
UNION ALL SELECT 'trigger ' || pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = $1::regnamespace AND NOT t.tgisinternal
ORDER BY 1`

func catalog(t *testing.T, db testkit.DB, schema string) []string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), catalogSQL, schema)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

// A migration that is interrupted at its very end, when all of it has been done and only its version is not written down yet, leaves nothing
// behind, and goes through at the next try.
func TestEveryMigrationIsOneTransaction(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	schema := schemaFor(t, db)
	exec := func(sql string, args ...any) {
		_, err := db.Pool.Exec(t.Context(), fmt.Sprintf(strings.ReplaceAll(sql, "@", schema), args...))
		require.NoError(t, err, sql)
	}
	migrate := func(to int64) error {
		_, err := pg.Migrate(t.Context(), pg.MigrateOptions{URL: db.URL, Schema: schema, To: to})
		return err
	}
	require.NoError(t, migrate(1)) // makes the table of versions; TestMigrateByEightProcesses begins without it
	exec(`CREATE TABLE @.fails_at (version bigint); INSERT INTO @.fails_at VALUES (0);
CREATE FUNCTION @.fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.version_id = (SELECT version FROM @.fails_at) THEN RAISE EXCEPTION 'interrupted'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER fail BEFORE INSERT ON @.schema_version FOR EACH ROW EXECUTE FUNCTION @.fail()`)
	for version := int64(2); version <= pg.Version(); version++ {
		before := catalog(t, db, schema)
		exec(`UPDATE @.fails_at SET version = %d`, version)
		require.ErrorContains(t, migrate(version), "interrupted", version)
		require.Equal(t, before, catalog(t, db, schema), "what migration %d left behind", version)
		exec(`UPDATE @.fails_at SET version = 0`)
		require.NoError(t, migrate(version))
		require.NotEqual(t, before, catalog(t, db, schema), "migration %d does something", version)
	}
	steps, err := pg.Status(t.Context(), pg.MigrateOptions{URL: db.URL, Schema: schema})
	require.NoError(t, err)
	require.False(t, slices.ContainsFunc(steps, func(s pg.Migration) bool { return !s.Applied }))
}

// locksSQL are the tables of before that this transaction has locked against writers, the strongest lock of each.
const locksSQL = `
SELECT c.relname || ': ' || CASE WHEN bool_or(l.mode = 'AccessExclusiveLock') THEN 'everything' ELSE 'writers' END
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
WHERE l.pid = pg_backend_pid() AND l.mode IN ('AccessExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock')
  AND c.relnamespace = $1::regnamespace AND c.relkind = 'r' AND c.relname = ANY($2)
GROUP BY c.relname ORDER BY 1`

// docs/upgrading.md says of each migration which tables it locks, and which lets nobody read.
func TestWhatMigrationsLockIsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/upgrading.md")
	require.NoError(t, err)
	documented := map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| (\d{5}_\w+) \| ([^|]*) \|`).FindAllStringSubmatch(string(text), -1) {
		documented[row[1]] = strings.TrimSpace(row[2])
	}
	db := testkit.Database(t)
	schema := schemaFor(t, db)
	files, err := filepath.Glob("migrations/*.sql")
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), db.Direct)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	_, err = conn.Exec(t.Context(), "CREATE SCHEMA "+schema+"; CREATE TABLE "+schema+".schema_version (version_id bigint)")
	require.NoError(t, err)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".sql")
		sql, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NotContains(t, string(sql), "NO TRANSACTION", "%s would have to be safe to repeat", name)
		rows, err := conn.Query(t.Context(), `SELECT relname::text FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind = 'r'`, schema)
		require.NoError(t, err)
		tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.NoError(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			// Without arguments: several statements at once. goose's marks are comments.
			if _, err := tx.Conn().PgConn().Exec(t.Context(), strings.ReplaceAll(string(sql), "@schema@", schema)).ReadAll(); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			rows, err := tx.Query(t.Context(), locksSQL, schema, tables)
			if err != nil {
				return err
			}
			locked, err := pgx.CollectRows(rows, pgx.RowTo[string])

			require.Equal(t, strings.Join(locked, ", "), documented[name], "docs/upgrading.md: what %s locks", name)
			require.Contains(t, documented, name, "docs/upgrading.md has a row for each migration")
			return err
		}))
	}
}

// A program meets a schema that is ahead of it while replicas are replaced. It goes on if the last migration says so, and only then.
func TestAnOlderProgramWithANewerSchema(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	exec := func(sql string, args ...any) {
		_, err := db.Pool.Exec(t.Context(), fmt.Sprintf(strings.ReplaceAll(sql, "@", db.Schema), args...))
		require.NoError(t, err)
	}
	fits := func() error { return pg.CheckVersion(t.Context(), db.Pool, db.Schema) }
	says := func(oldest, version int64) {
		exec(`CREATE OR REPLACE FUNCTION @.schema_fits(p_program bigint) RETURNS boolean LANGUAGE sql STABLE AS
            $$ SELECT p_program >= %d AND coalesce((SELECT max(version_id) = %d FROM @.schema_version), false) $$`, oldest, version)
	}
	next := pg.Version() + 1
	exec(`INSERT INTO @.schema_version (version_id, is_applied) VALUES (%d, true)`, next)
	require.ErrorContains(t, fits(), "use a newer surefoot", "the migration says nothing")
	says(pg.Version(), next)
	require.NoError(t, fits(), "it says that it fits")
	applied, err := pg.Migrate(t.Context(), pg.MigrateOptions{URL: db.URL, Schema: db.Schema})
	require.NoError(t, err)
	require.Empty(t, applied, "an older program migrates nothing")
	says(next, next)
	require.ErrorContains(t, fits(), "use a newer surefoot", "it says that older programs do not fit")
	says(pg.Version(), next)
	exec(`INSERT INTO @.schema_version (version_id, is_applied) VALUES (%d, true)`, next+1)
	require.ErrorContains(t, fits(), "use a newer surefoot", "the one after it says nothing")
	exec(`DROP FUNCTION @.schema_fits(bigint)`)
	require.ErrorContains(t, fits(), "use a newer surefoot")
}

// Every migration from the one that brought schema_fits on has set it to its own version.
func TestTheNewestMigrationSaysWhoFits(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	var fits, olderFits bool
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT `+db.Schema+`.schema_fits($1), `+db.Schema+`.schema_fits(21)`, pg.Version()).Scan(&fits, &olderFits))
	require.True(t, fits, "a migration replaces schema_fits: see 00022_schema_fits.sql")
	require.False(t, olderFits, "no such program was released")
}
