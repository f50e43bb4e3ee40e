package pg_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// sideBySide is how many transactions the tests hold open at once, each on a server connection of its own.
const sideBySide = 5

// together runs f in several transactions that are all open at the same time.
func together(t *testing.T, pool *pgxpool.Pool, f func(ctx context.Context, tx pgx.Tx) error) error {
	t.Helper()
	var open sync.WaitGroup
	open.Add(sideBySide)
	group, ctx := errgroup.WithContext(t.Context())
	for range sideBySide {
		group.Go(func() error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				open.Done()
				open.Wait()
				return f(ctx, tx)
			})
		})
	}
	return group.Wait()
}

func openPool(t *testing.T, o pg.Options) *pgxpool.Pool {
	t.Helper()
	o.MaxConns = sideBySide
	pool, err := pg.Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func withOption(t *testing.T, raw, key, value string) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	query := u.Query()
	query.Set(key, value)
	u.RawQuery = query.Encode()
	return u.String()
}

// mixed runs statements with parameters, each first on one server connection and then on several at once.
func mixed(t *testing.T, pool *pgxpool.Pool) error {
	t.Helper()
	for i := range 10 {
		err := onceThenTogether(t, pool, func(ctx context.Context, tx pgx.Tx) error {
			var got []string
			return tx.QueryRow(ctx, fmt.Sprintf(`SELECT ARRAY[$1::text, '%d']`, i), "a").Scan(&got)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func onceThenTogether(t *testing.T, pool *pgxpool.Pool, f func(ctx context.Context, tx pgx.Tx) error) error {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return f(t.Context(), tx) }); err != nil {
		return err
	}
	return together(t, pool, f)
}

func TestPoolerStatementsGoUnprepared(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	u := testkit.PgBouncer(t, db.Direct)
	require.NoError(t, mixed(t, openPool(t, pg.Options{URL: u})))

	// The URL has the last word; with it this test sees what it is about.
	err := mixed(t, openPool(t, pg.Options{URL: withOption(t, u, "default_query_exec_mode", "cache_statement")}))
	require.ErrorContains(t, err, "prepared statement")
	require.NoError(t, mixed(t, openPool(t, pg.Options{URL: withOption(t, u, "default_query_exec_mode", "exec")})))
}

// A user's own pool cannot be helped, but its user can.
func TestPoolerOfAnOrdinaryPoolIsNamed(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	u := testkit.PgBouncer(t, db.Direct)
	plain, err := pgxpool.New(t.Context(), withOption(t, u, "pool_max_conns", "1"))
	require.NoError(t, err)
	t.Cleanup(plain.Close)
	require.NoError(t, pg.CheckVersion(t.Context(), plain, db.Schema))
	advised := openPool(t, pg.Options{URL: withOption(t, u, "default_query_exec_mode", "cache_describe")})
	require.NoError(t, pgx.BeginFunc(t.Context(), advised, func(tx pgx.Tx) error {
		if err := pg.CheckVersion(t.Context(), tx, db.Schema); err != nil {
			return err
		}
		// This transaction has the only server connection so far: the next one is another.
		require.ErrorContains(t, pg.CheckVersion(t.Context(), plain, db.Schema), "add default_query_exec_mode=cache_describe to the URL of this pool")
		return nil
	}))
}

// Past a pooler nothing is given up.
func TestDirectConnectionsPrepareTheirStatements(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	pool := openPool(t, pg.Options{URL: db.Direct})
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		var prepared int
		return tx.QueryRow(t.Context(), `SELECT count(*) / (count(*) * $1) FROM pg_prepared_statements`, 1).Scan(&prepared) // none would divide by zero
	}))
}

func TestPoolerOthersKeepTheirTimeout(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	u := testkit.PgBouncer(t, db.Direct)
	pool := openPool(t, pg.Options{URL: u, StatementTimeout: 7 * time.Second})
	show := func(ctx context.Context, tx pgx.Tx) error {
		var timeout string
		if err := tx.QueryRow(ctx, `SHOW statement_timeout`).Scan(&timeout); err != nil {
			return err
		}
		if timeout != "0" {
			return fmt.Errorf("statement_timeout is %s on a connection that others get", timeout)
		}
		return nil
	}
	require.NoError(t, together(t, pool, show))
	pool.Reset() // connect again, now that the server connections are there
	require.NoError(t, together(t, pool, show))
}

func TestPoolerStatementTimeout(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	u := testkit.PgBouncer(t, db.Direct)
	pool := openPool(t, pg.Options{URL: u, StatementTimeout: 300 * time.Millisecond, Name: "pooled " + db.Schema})
	sleep := func(q interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}, seconds float64,
	) error {
		var nothing any
		return q.QueryRow(t.Context(), `SELECT pg_sleep($1)::text`, seconds).Scan(&nothing)
	}
	require.ErrorIs(t, sleep(pool, 60), context.DeadlineExceeded)
	_, err := pool.Exec(t.Context(), `SELECT pg_sleep(60)`)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	testkit.Eventually(t, 10*time.Second, "the server to cancel the statements", func() bool {
		var running int
		require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND state = 'active'`,
			"pooled "+db.Schema).Scan(&running))
		return running == 0
	})

	// A transaction that sets its own timeout has it, and no other.
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL statement_timeout = 20000`); err != nil {
			return err
		}
		return sleep(tx, 1)
	}))
	require.ErrorIs(t, sleep(pool, 60), context.DeadlineExceeded)

	none := openPool(t, pg.Options{URL: u, StatementTimeout: -1})
	require.NoError(t, sleep(none, 1))
}

func TestPoolerMigrates(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	o := pg.MigrateOptions{URL: testkit.PgBouncer(t, db.Direct), Schema: schemaFor(t, db)}
	applied := make([][]pg.Migration, sideBySide)
	group, ctx := errgroup.WithContext(t.Context())
	for i := range applied {
		group.Go(func() (err error) {
			applied[i], err = pg.Migrate(ctx, o)
			return err
		})
	}
	require.NoError(t, group.Wait())
	steps := 0
	for _, a := range applied {
		steps += len(a)
	}
	require.EqualValues(t, pg.Version(), steps, "each step once")
	all, err := pg.Status(t.Context(), o)
	require.NoError(t, err)
	for _, step := range all {
		require.True(t, step.Applied)
		require.WithinDuration(t, time.Now(), step.At, time.Hour)
	}
	pool := openPool(t, pg.Options{URL: o.URL})
	require.NoError(t, pg.CheckVersion(t.Context(), pool, o.Schema))
	var id string
	require.NoError(t, pool.QueryRow(t.Context(), strings.ReplaceAll(`SELECT @.enqueue($1, $2, key => $3, lock_key => true)`, "@", o.Schema),
		"a", []byte("x"), "k").Scan(&id))
	require.Len(t, id, 36)
}
