package cli_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

const versionConfig = `
http: {listen: "127.0.0.1:0"}
topology: {exchange: x, queues: [{name: q, bindings: [a], target: {exec: ["true"]}}]}
watchdog:
  rules:
    - {name: r, table: %s.sagas, key: id, status: status, stuck: [a], clock: at, limit: 1s, new_status: b, reason: R, exchange: x, event_type: a}
`

// contents is everything in a schema, as text that can be compared.
func contents(t *testing.T, db testkit.DB) map[string]string {
	t.Helper()
	rows, err := db.Pool.Query(t.Context(), `SELECT relname FROM pg_class WHERE relnamespace = $1::regnamespace AND relkind IN ('r', 'S') ORDER BY 1`, db.Schema)
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	all := map[string]string{}
	for _, name := range names {
		var text string
		require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT coalesce(string_agg(x::text, E'\n' ORDER BY x::text), '') FROM (SELECT * FROM `+db.Schema+`.`+name+`) x`).Scan(&text), name)
		all[name] = text
	}
	return all
}

// A binary of another version than the schema says what to do, and changes nothing in the database nor in the broker, whichever
// command or role it is: the older one with a newer schema, and the newer one before `migrate up`.
func TestASchemaOfAnotherVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		behind int
		sql    string
		says   string
	}{
		"older schema": {behind: 1, says: "run `surefoot migrate up`"},
		"newer schema": {sql: `INSERT INTO @.schema_version (version_id, is_applied) VALUES (999, true)`, says: "use a newer surefoot"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newVersionStage(t, tt.behind, tt.sql)
			before := contents(t, s.db)
			for _, line := range []string{
				"outbox add", "outbox ls", "outbox show id", "outbox retry id --yes", "outbox discard id --reason x --yes",
				"dlq ls", "dlq show --queue q", "dlq groups", "dlq redrive --queue q --yes", "dlq discard --queue q --reason x --yes",
				"consume pause --queue q --reason x", "consume resume --queue q", "consume ls", "watchdog once", "watchdog ls",
			} {
				got := s.run(line)
				require.NotZero(t, got.code, line)
				require.Contains(t, got.stderr, tt.says, line)
				require.Empty(t, got.stdout, line)
			}
			for _, line := range []string{"relay run", "consume run", "watchdog run", "run"} {
				s.roleWaits(line, tt.says)
			}
			require.Equal(t, before, contents(t, s.db))
			require.Equal(t, 1, s.depth("q.dlq"))

			up := s.run("migrate up")
			require.Zero(t, up.code, up.stderr)
			add := s.run("outbox add")
			require.Equal(t, tt.behind > 0, add.code == cli.ExitDone, "once migrated it works, and a newer one stays as it is: %s", add.stderr)
		})
	}
}

// versionStage is a schema with something of everything, and a dead letter.
type versionStage struct {
	*dlqStage
}

func newVersionStage(t *testing.T, behind int, sql string) *versionStage {
	t.Helper()
	s := &versionStage{dlqStage: newDLQStage(t)}
	s.db = testkit.DatabaseBehind(t, behind)
	for _, statement := range []string{
		`CREATE TABLE @.sagas (id bigint PRIMARY KEY, status text, at timestamptz)`, `INSERT INTO @.sagas VALUES (1, 'a', 'yesterday')`,
		`SELECT @.enqueue('a', '1', message_id => 'id')`, `INSERT INTO @.pauses (queue, who, reason) VALUES ('q', 'x', 'y')`,
		`UPDATE @.outbox_leases SET owner = gen_random_uuid(), expires_at = 'yesterday'`, sql,
	} {
		_, err := s.db.Pool.Exec(t.Context(), strings.ReplaceAll(statement, "@", s.db.Schema))
		require.NoError(t, err, statement)
	}
	apply := run(t, s.settings(""), "topology", "apply", "--yes")
	require.Zero(t, apply.code, apply.stderr)
	require.NoError(t, s.ch.PublishWithContext(t.Context(), "", "q.dlq", true, false, amqp.Publishing{MessageId: "dead"}))
	testkit.Eventually(t, 10*time.Second, "the letter", func() bool { return s.depth("q.dlq") == 1 })
	return s
}

func (s *versionStage) settings(stdin string) cli.Env {
	e := s.env()
	e.ReadFile = env(fmt.Sprintf(versionConfig, s.db.Schema)).ReadFile
	e.Stdin = strings.NewReader(stdin)
	return e
}

func (s *versionStage) run(line string) result {
	s.Helper()
	return run(s.T, s.settings(`{"type":"a","payload":1}`), strings.Fields(line)...)
}

// roleWaits runs a role until it has said why it does not work.
func (s *versionStage) roleWaits(line, why string) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	var stderr testkit.Buffer
	e := s.settings("")
	e.Stdout, e.Stderr = &bytes.Buffer{}, &stderr
	done := make(chan int, 1)
	go func() { done <- cli.Main(ctx, strings.Fields(line), e) }()
	testkit.Eventually(s, 20*time.Second, line+" to say why it waits", func() bool { return strings.Contains(stderr.String(), why) })
	cancel()
	<-done
	require.Contains(s, stderr.String(), "waiting for the database", line)
}
