package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
)

// schema finds a schema that is missing or of another version; what needs tables is then left out.
func (v *visit) schema(ctx context.Context) ([]Finding, error) {
	name := v.config.Database.Schema
	err := pg.CheckVersion(ctx, v.pool, name)
	if err == nil {
		return []Finding{ok("schema "+name, fmt.Sprintf("version %d", pg.Version()))}, nil
	}
	v.away[tables] = err
	if resilience.SQLStateOf(err) == pg.InsufficientPrivilege {
		return []Finding{{
			Severity: Critical, About: "schema " + name, Found: err.Error(), Meaning: "no role of Surefoot can start as this user",
			Mend: fmt.Sprintf("as the owner of the schema: GRANT USAGE ON SCHEMA %s TO USER; GRANT SELECT ON %s.schema_version TO USER", name, name),
		}}, nil
	}
	if outOfReach(err) || resilience.SQLStateOf(err) != "" {
		return nil, err
	}
	return []Finding{{Severity: Critical, About: "schema " + name, Found: err.Error(), Meaning: "no role starts with it", Mend: "`surefoot migrate up`, or another version of this program"}}, nil
}

// databaseClock compares this host's clock with the database's.
func (v *visit) databaseClock(ctx context.Context) ([]Finding, error) {
	began, start := v.o.Now(), time.Now()
	var theirs time.Time
	if err := v.pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&theirs); err != nil {
		return nil, err
	}
	took := time.Since(start)
	return []Finding{v.clock("database", theirs.Sub(began.Add(took/2)), took)}, nil
}

// clock judges how far another clock is ahead of this host's, known to half of what the question took.
func (v *visit) clock(whose string, ahead, took time.Duration) Finding {
	if off := ahead.Abs() - took/2; off <= v.o.limits.clock {
		return ok(whose, "its clock and this host's agree within "+v.o.limits.clock.String())
	}
	direction := "ahead of"
	if ahead < 0 {
		direction = "behind"
	}
	return Finding{
		Severity: Warning, About: whose, Found: fmt.Sprintf("its clock is %s %s this host's", ahead.Abs().Round(100*time.Millisecond), direction),
		Meaning: "leases and limits go by the database's clock and hold; times in messages, failure records, logs and certificates are wrong by that much",
		Mend:    "set both by NTP (chronyc tracking, timedatectl)",
	}
}

const longTransactionsSQL = `
SELECT pid, coalesce(usename, ''), coalesce(application_name, ''), coalesce(state, ''), extract(epoch FROM clock_timestamp() - xact_start)::float8
FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start < clock_timestamp() - make_interval(secs => $1)
ORDER BY xact_start LIMIT 20`

type transaction struct {
	PID                      int32
	User, Application, State string
	Seconds                  float64
}

// longTransactions finds transactions that have been open for long in this database.
func (v *visit) longTransactions(ctx context.Context) ([]Finding, error) {
	var all bool
	if err := v.pool.QueryRow(ctx, `SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')`).Scan(&all); err != nil {
		return nil, err
	}
	rows, err := v.pool.Query(ctx, longTransactionsSQL, v.o.limits.transaction.Seconds())
	if err != nil {
		return nil, err
	}
	open, err := pgx.CollectRows(rows, pgx.RowToStructByPos[transaction])
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, t := range open {
		found = append(found, Finding{
			Severity: Warning, About: fmt.Sprintf("process %d", t.PID),
			Found:   fmt.Sprintf("a transaction of %s (%s) has been open for %s, now %s", t.User, t.Application, seconds(t.Seconds), t.State),
			Meaning: "rows that were deleted since stay in the tables and slow every read down; what it wrote itself, outbox rows too, nobody sees",
			Mend:    fmt.Sprintf("end it there, or: SELECT pg_terminate_backend(%d); bound it by idle_in_transaction_session_timeout", t.PID),
		})
	}
	if !all {
		found = append(found, Finding{
			Severity: Unknown, About: "transactions of other users", Found: "this user may not see them", Mend: "GRANT pg_read_all_stats TO the user",
		})
	}
	if len(found) == 0 {
		found = append(found, ok("database", "no transaction is older than "+v.o.limits.transaction.String()))
	}
	return found, nil
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}

const tableSizesSQL = `
SELECT c.relname, pg_total_relation_size(c.oid), coalesce(s.n_dead_tup, 0)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace LEFT JOIN pg_stat_all_tables AS s ON s.relid = c.oid
WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') ORDER BY 2 DESC, 1`

type table struct {
	Name        string
	Bytes, Dead int64
}

// tableSizes finds tables of Surefoot's that have grown, or that nobody vacuums.
func (v *visit) tableSizes(ctx context.Context) ([]Finding, error) {
	schema := v.config.Database.Schema
	rows, err := v.pool.Query(ctx, tableSizesSQL, schema)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[table])
	if err != nil {
		return nil, err
	}
	var found []Finding
	total := int64(0)
	for _, t := range all {
		total += t.Bytes
		if t.Bytes > v.o.limits.table {
			found = append(found, Finding{
				Severity: Warning, About: schema + "." + t.Name, Found: "has " + megabytes(t.Bytes),
				Meaning: "more than its retention should leave: reads, backups and restarts take longer", Mend: mendSize(t.Name),
			})
		}
		if t.Dead > v.o.limits.dead {
			found = append(found, Finding{
				Severity: Warning, About: schema + "." + t.Name, Found: fmt.Sprintf("has %d dead rows", t.Dead),
				Meaning: "autovacuum does not keep up, and reads walk through them",
				Mend:    "look for long transactions and abandoned replication slots; else give autovacuum more workers and a higher cost limit",
			})
		}
	}
	if len(found) == 0 {
		found = append(found, ok("schema "+schema, fmt.Sprintf("its %d tables have %s together", len(all), megabytes(total))))
	}
	return found, nil
}

func megabytes(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// mendSize says what makes a table smaller.
func mendSize(table string) string {
	switch {
	case table == "outbox":
		return "rows wait to be published: docs/runbooks/outbox-old.md"
	case table == "outbox_parked":
		return "`surefoot outbox ls`: retry or discard what is dead"
	case strings.HasPrefix(table, "inbox"):
		return "lower inbox.retention, as far as messages never come again that late"
	case strings.HasPrefix(table, "dlq_"):
		return "empty the dead-letter queues: docs/runbooks/dlq.md"
	}
	return "its retention is fixed: look for a role that does not run, for each cleans up its own tables"
}

// pooler finds what a pooler between this program and the database breaks.
func (v *visit) pooler(ctx context.Context) ([]Finding, error) {
	pooled, err := behindPooler(ctx, v.pool)
	if err != nil {
		return nil, err
	}
	found, err := v.listener(ctx)
	if err != nil {
		return found, err
	}
	if !pooled {
		return append(found, ok("database.url", "leads to the server itself")), nil
	}
	err = pgx.BeginFunc(ctx, v.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT 1`)
		return err
	})
	if err != nil {
		return append(found, Finding{ //nolint:nilerr // the error is what was looked for
			Severity: Critical, About: "database.url", Found: "leads through a pooler that does not keep a transaction on one connection: " + err.Error(),
			Meaning: "nothing of Surefoot works there", Mend: "set PgBouncer's pool_mode to transaction",
		}), nil
	}
	unlimited, err := v.unlimited(ctx)
	if err != nil {
		return found, err
	}
	if unlimited {
		found = append(found, Finding{
			Severity: Warning, About: "database.url", Found: "leads through a pooler, and the user has no statement_timeout",
			Meaning: "statements of a program that is killed run on without end, with their locks; what lives keeps its own time",
			Mend:    "ALTER ROLE " + pgx.Identifier{v.pool.Config().ConnConfig.User}.Sanitize() + " SET statement_timeout = '30s'",
		})
	}
	return append(found, ok("database.url", "leads through a pooler; statements are not prepared")), nil
}

func behindPooler(ctx context.Context, pool *pgxpool.Pool) (bool, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release()
	return pg.IsPooled(conn.Conn()), nil
}

// unlimited asks for the user's own limit; behind a pooler nobody else has set one.
func (v *visit) unlimited(ctx context.Context) (yes bool, err error) {
	err = v.pool.QueryRow(ctx, `SELECT current_setting('statement_timeout') = '0'`).Scan(&yes)
	return yes, err
}

// listener finds a relay.listen_url that delivers nothing.
func (v *visit) listener(ctx context.Context) ([]Finding, error) {
	u := v.config.Relay.ListenURL.Reveal()
	if u == "" {
		return nil, nil
	}
	pool, err := pg.Open(ctx, pg.Options{URL: u, Name: "surefoot doctor " + v.o.Host, MaxConns: 1, ConnectTimeout: v.config.Database.ConnectTimeout})
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	pooled, err := behindPooler(ctx, pool)
	if err != nil {
		return nil, fmt.Errorf("relay.listen_url: %w", err)
	}
	if !pooled {
		return nil, nil
	}
	return []Finding{{
		Severity: Warning, About: "relay.listen_url", Found: "leads through a pooler",
		Meaning: "it takes LISTEN and delivers nothing: rows wait up to relay.poll_max", Mend: "name the server itself, or leave the key out",
	}}, nil
}

// synchronousCommit finds settings with which a crash of the database takes commits back.
func (v *visit) synchronousCommit(ctx context.Context) ([]Finding, error) {
	var commit, fsync, standbys string
	err := v.pool.QueryRow(ctx, `SELECT current_setting('synchronous_commit'), current_setting('fsync'), current_setting('synchronous_standby_names')`).
		Scan(&commit, &fsync, &standbys)
	if err != nil {
		return nil, err
	}
	var found []Finding
	lossy := func(setting, mend string) {
		found = append(found, Finding{
			Severity: Critical, About: setting, Found: "is off",
			Meaning: "a crash of the database takes back commits whose events have been published, and effects whose messages have been acknowledged", Mend: mend,
		})
	}
	if commit == "off" {
		lossy("synchronous_commit", "set it on for this user and for producers: ALTER ROLE USER SET synchronous_commit = on")
	}
	if fsync == "off" {
		lossy("fsync", "set it on in postgresql.conf")
	}
	if commit == "local" && standbys != "" {
		found = append(found, Finding{
			Severity: Warning, About: "synchronous_commit", Found: "is local, and there are synchronous standbys",
			Meaning: "a failover takes back commits whose events have been published", Mend: "set it on for this user and for producers",
		})
	}
	if len(found) == 0 {
		found = append(found, ok("synchronous_commit", "is "+commit+" for this user"))
	}
	return found, nil
}
