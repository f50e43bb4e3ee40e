package outbox_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // registers "pgx"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

// call runs SELECT schema.function(args) and returns the error's text with its hint.
func call(t testing.TB, db testkit.DB, function string, args ...any) (string, error) {
	t.Helper()
	var result *string
	err := db.Pool.QueryRow(t.Context(), `SELECT `+db.Schema+`.`+function+``, args...).Scan(&result)
	if result == nil {
		return "", err
	}
	return *result, err
}

func pgError(t testing.TB, err error) *pgconn.PgError {
	t.Helper()
	var server *pgconn.PgError
	require.ErrorAs(t, err, &server)
	return server
}

func TestScalarEnqueueDefaults(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	id, err := call(t, db, `enqueue('order.created', convert_to('{"n": 1.0}', 'UTF8'), key => '42')`)
	require.NoError(t, err)
	require.Len(t, id, 36)
	require.Equal(t, byte('7'), id[14])
	_, err = call(t, db, `enqueue('b', '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)`)
	require.NoError(t, err, "NULL stands for the default")
	_, err = call(t, db, `enqueue('b', '', message_id => '', content_type => '')`)
	require.NoError(t, err)
	got := stored(t, db)
	require.Equal(t, id, got[0].MessageID)
	require.Equal(t, `{"n": 1.0}`, string(got[0].Payload))
	for _, r := range got {
		require.Equal(t, "application/json", r.ContentType)
		require.Nil(t, r.Headers)
		require.NotEmpty(t, r.MessageID)
		require.WithinDuration(t, time.Now(), r.OccurredAt, time.Minute)
	}
}

func TestScalarEnqueueRefusesWhatCannotBeSent(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for args, fault := range map[string]string{
		`NULL, ''`: "type must not be NULL", `NULL, NULL`: "type, payload must not be NULL", `'', ''`: "type must have", `repeat('x', 256), ''`: "type must have 1 to 255 bytes", `'a', NULL`: "payload must not be NULL",
		`'a', '', key => repeat('ü', 128)`:                                "key must have at most 255 bytes",
		`'a', '', message_id => repeat('x', 256)`:                         "message_id must have",
		`'a', '', exchange => repeat('x', 256)`:                           "exchange must",
		`'a', '', routing_key => repeat('x', 256)`:                        "routing_key must",
		`'a', '', content_type => repeat('x', 256)`:                       "content_type must",
		`'a', '', source => repeat('x', 256)`:                             "source must",
		`'a', '', correlation_id => repeat('x',256)`:                      "correlation_id must",
		`'a', '', causation_id => repeat('x', 513)`:                       "causation_id must have at most 512",
		`'a', '', request_id => repeat('x', 513)`:                         "request_id must",
		`'a', '', traceparent => repeat('x', 513)`:                        "traceparent must",
		`'a', '', tracestate => repeat('x', 513)`:                         "tracestate must",
		`'a', '', occurred_at => 'infinity'`:                              "years 1970 to 9999",
		`'a', '', occurred_at => '1969-12-31Z'`:                           "years 1970 to 9999",
		`'a', '', headers => '[]'`:                                        "not a JSON object",
		`'a', '', headers => 'null'`:                                      "not a JSON object",
		`'a', '', headers => '{"X-Death": 1}'`:                            `headers contain "X-Death"`,
		`'a', '', headers => '{"sf-key": 1}'`:                             "use another name",
		`'a', '', headers => '{"CC": []}'`:                                "use another name",
		`'a', '', headers => '{"": 1}'`:                                   "empty or over 255",
		`'a', '', headers => json_build_object('a', repeat('x', 262144))`: "256 KiB",
		`'a', '', once => true`:                                           "once needs a message_id",
	} {
		_, err := call(t, db, `enqueue(`+args+`)`)
		require.ErrorContains(t, err, fault, args)
		server := pgError(t, err)
		require.Equal(t, "22023", server.Code, args)
		require.Contains(t, server.Message, "enqueue: ", args)
		require.NotEmpty(t, server.Hint)
		require.Empty(t, server.Detail, "the detail of a constraint would show the payload")
	}
	_, err := call(t, db, `enqueue('a', '', headers => '{"cc": 1, "x-tenant": "a"}')`)
	require.NoError(t, err)
	require.Len(t, stored(t, db), 1)
}

// The names that the SQL function refuses are those of the message package.
func TestReservedHeadersAreTheSameInSQL(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, name := range []string{
		"sf-", "sf-anything", "SF-Key", "x-request-id", "traceparent", "TraceState", "x-attempts", "x-reprocess", "x-death", "X-DEATH", "x-delivery-count",
		"x-acquired-count", "x-delay", "x-stream-offset", "x-stream-filter", "x-stream-filter-value", "x-received-from", "x-shovelled",
		"x-shovelled-timestamp", "x-first-death-queue", "x-last-death-", "x-opt-a", "x-mqtt-dup", "x-amqp-1.0-footer", "CC", "BCC",
		"x-tenant", "cc", "bcc", "Cc", "x-deaths", "sfkey", "x-opted", "my-x-death", "x-amqp-1a0-footer", "x-delay\n", "a\nsf-b", "x-death-", "sf",
	} {
		_, err := call(t, db, `enqueue('a', '', headers => json_build_object($1::text, 1))`, name)
		require.Equal(t, message.Reserved(name), err != nil, "%q: %v", name, err)
	}
}

// Enqueue and both SQL functions take the same texts for a traceparent.
func TestATraceparentIsTheSameInSQL(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	zeros := func(from, to int) string { return traceParent[:from] + strings.Repeat("0", to-from) + traceParent[to:] }
	good := map[string]bool{"": true, traceParent: true, "01" + traceParent[2:]: true, "cc" + traceParent[2:] + "-what-the-future brings": true, zeros(53, 55): true}
	for text := range good {
		require.NoError(t, message.Message{Type: "a", TraceParent: text}.Validate(0), text)
	}
	for _, text := range []string{
		"", traceParent, "01" + traceParent[2:], "cc" + traceParent[2:] + "-what-the-future brings", zeros(53, 55), "zz", traceParent + "-01", traceParent + "1", "01" + traceParent[2:] + "x",
		"ff" + traceParent[2:], zeros(3, 35), zeros(36, 52), strings.ToUpper(traceParent), traceParent[:54], " " + traceParent, traceParent + "\n", strings.ReplaceAll(traceParent, "-", "_"),
		traceParent[:54] + "g",
	} {
		err := message.Message{Type: "a", TraceParent: text}.Validate(0)
		require.Equal(t, good[text], err == nil, "%q: %v", text, err)
		_, err = call(t, db, `enqueue('a', '', traceparent => $1)`, text)
		require.Equal(t, good[text], err == nil, "%q: %v", text, err)
		_, batched := call(t, db, batch(map[int]string{11: `ARRAY['', $1]`}), text)
		require.Equal(t, good[text], batched == nil, "%q: %v", text, batched)
		if !good[text] {
			require.ErrorContains(t, err, "traceparent must be one of W3C trace context", text)
			require.ErrorContains(t, batched, "message 2: traceparent must be one of W3C trace context", text)
		}
	}
	_, err := call(t, db, `enqueue('a', '', traceparent => NULL)`)
	require.NoError(t, err)
}

func TestTextThatPostgreSQLCannotStore(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, bad := range []string{"a\x00b", "a\xffb"} {
		_, err := call(t, db, `enqueue('a', '', key => $1)`, bad)
		require.Equal(t, "22021", pgError(t, err).Code)
	}
	require.Empty(t, stored(t, db))
}

// batch is a call of enqueue_batch with two good messages; each argument can be replaced.
func batch(replace map[int]string) string {
	args := []string{
		`ARRAY['1','2']`, `ARRAY['t','t']`, `ARRAY['k','']`, `ARRAY['','']`, `ARRAY['','']`, `ARRAY['text/plain','']`,
		`ARRAY[now(), now()]`, `ARRAY['','']`, `ARRAY['','']`, `ARRAY['','']`, `ARRAY['','']`, `ARRAY['','']`, `ARRAY['','']`,
		`ARRAY['{"a":1}', NULL]`, `ARRAY['\x00', '\xff']::bytea[]`, `false`, `false`,
	}
	for i, arg := range replace {
		args[i] = arg
	}
	return `enqueue_batch(` + strings.Join(args, ", ") + `)::text`
}

func TestBatchRefusesArraysOfUnequalLength(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	n, err := call(t, db, batch(nil))
	require.NoError(t, err)
	require.Equal(t, "2", n)
	types := map[int]string{6: "timestamptz[]", 14: "bytea[]"}
	for i := range 15 {
		typ := types[i]
		if typ == "" {
			typ = "text[]"
		}
		values := map[string]string{"text[]": `ARRAY['x']`, "timestamptz[]": `ARRAY[now()]`, "bytea[]": `ARRAY['\x00']::bytea[]`}
		for _, wrong := range []string{values[typ], `'{}'::` + typ, `NULL::` + typ} {
			_, err := call(t, db, batch(map[int]string{i: wrong}))
			require.ErrorContains(t, err, "same length", "argument %d: %s", i+1, wrong)
		}
		if i == 13 {
			continue // headers may be NULL
		}
		argument := []string{
			"message_id", "type", "key", "exchange", "routing_key", "content_type", "occurred_at", "source", "correlation_id", "causation_id",
			"request_id", "traceparent", "tracestate", "", "payload",
		}[i]
		if i == 11 {
			values[typ] = `ARRAY['']` // an x is no traceparent
		}
		withNull := `(` + values[typ] + ` || NULL::` + strings.TrimSuffix(typ, "[]") + `)`
		_, err := call(t, db, batch(map[int]string{i: withNull}))
		require.ErrorContains(t, err, "message 2: "+argument+" must not be NULL", "argument %d", i+1)
	}
	require.Len(t, stored(t, db), 2)
}

func TestBatchNamesTheMessageThatIsWrong(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	_, err := call(t, db, batch(map[int]string{2: `ARRAY['k', repeat('x', 256)]`}))
	require.ErrorContains(t, err, "message 2: key must have at most 255 bytes")
	require.Empty(t, pgError(t, err).Detail)
	_, err = call(t, db, batch(map[int]string{0: `ARRAY['', '2']`, 15: "true"}))
	require.ErrorContains(t, err, "message 1: message_id")
	_, err = call(t, db, batch(map[int]string{13: `ARRAY['{"x-death":1}', NULL]`}))
	require.ErrorContains(t, err, `message 1: headers contain "x-death"`)
	_, err = call(t, db, batch(map[int]string{13: `ARRAY['{', NULL]`}))
	require.Equal(t, "22P02", pgError(t, err).Code)
	require.Empty(t, stored(t, db))
}

func TestTheTableRefusesWhatGoesPastTheFunctions(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	columns := `(occurred_at, hash, shard, message_id, type, key, exchange, routing_key, content_type, source, correlation_id, causation_id, request_id, traceparent, tracestate, payload)`
	for name, values := range map[string]string{
		"occurred_at_is": `'infinity', 0, 0, '1', 't', '', '', '', '', '', '', '', '', '', '', ''`,
		"message_id_has": `now(), 0, 0, '', 't', '', '', '', '', '', '', '', '', '', '', ''`,
		"type_has":       `now(), 0, 0, '1', '', '', '', '', '', '', '', '', '', '', '', ''`,
		"trace_and":      `now(), 0, 0, '1', 't', '', '', '', '', '', '', '', repeat('x', 513), '', '', ''`,
	} {
		_, err := db.Pool.Exec(t.Context(), `INSERT INTO `+db.Schema+`.outbox `+columns+` VALUES (`+values+`)`)
		require.ErrorContains(t, err, name)
	}
}

func TestThroughDatabaseSQL(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	pool, err := sql.Open("pgx", db.URL)
	require.NoError(t, err)
	defer pool.Close()
	tx, err := pool.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	var id string
	require.NoError(t, tx.QueryRowContext(t.Context(),
		`SELECT `+db.Schema+`.enqueue($1, $2, key => $3, headers => $4)`, "order.created", []byte(`{"a": 1}`), "42", `{"x-tenant":"a"}`).Scan(&id))
	require.Empty(t, stored(t, db))
	require.NoError(t, tx.Commit())
	require.Equal(t, []string{id}, ids(stored(t, db)))
}

func TestThroughPsql(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	psql, err := exec.LookPath("psql")
	require.NoError(t, err, "install the PostgreSQL client")
	out, err := exec.CommandContext(t.Context(), psql, "-qAtX", "-v", "ON_ERROR_STOP=1", db.Direct, "-c",
		`BEGIN; SELECT `+db.Schema+`.enqueue('order.created', '{"orderId": "42"}', key => '42', message_id => 'from psql'); COMMIT`).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "from psql\n", string(out))
	got := stored(t, db)
	require.True(t, bytes.Equal([]byte(`{"orderId": "42"}`), got[0].Payload), "byte for byte: %s", got[0].Payload)
}

// A role with no more than EXECUTE can enqueue; it can neither write, change, delete nor read the table.
func TestEnqueueIsTheOnlyWay(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	role := testkit.Name("r")
	exec := func(sql string) {
		_, err := db.Pool.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	as := func(sql string) error {
		return pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+role); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), sql)
			return err
		})
	}
	exec(`CREATE ROLE ` + role)
	t.Cleanup(func() {
		_, err := db.Pool.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY `+role+`; DROP ROLE `+role)
		require.NoError(t, err)
	})
	enqueue := `SELECT ` + db.Schema + `.enqueue('a', '')`
	many := `SELECT ` + db.Schema + `.` + batch(nil)
	require.Equal(t, "42501", pgError(t, as(enqueue)).Code, "no USAGE yet")
	exec(`GRANT USAGE ON SCHEMA ` + db.Schema + ` TO ` + role)
	require.Equal(t, "42501", pgError(t, as(enqueue)).Code, "no EXECUTE yet")
	require.Equal(t, "42501", pgError(t, as(many)).Code)
	exec(`GRANT EXECUTE ON FUNCTION ` + db.Schema + `.enqueue, ` + db.Schema + `.enqueue_batch TO ` + role)
	require.NoError(t, as(enqueue))
	require.NoError(t, as(many))
	for _, sql := range []string{
		`INSERT INTO %s.outbox SELECT * FROM %[1]s.outbox`, `SELECT FROM %s.outbox`, `DELETE FROM %s.outbox`, `UPDATE %s.outbox SET shard = 0`,
		`TRUNCATE %s.outbox`, `SELECT nextval('%s.outbox_id_seq')`, `DELETE FROM %s.outbox_once`, `SELECT setval('%s.outbox_doorbell', 2)`,
	} {
		require.Equal(t, "42501", pgError(t, as(fmt.Sprintf(sql, db.Schema))).Code, sql)
	}
	require.Len(t, stored(t, db), 3)
}

// A caller's search_path must not reach into the functions, which run with their owner's rights.
func TestAForeignSearchPathChangesNothing(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	evil := testkit.Name("evil")
	err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		for _, sql := range []string{
			`CREATE SCHEMA ` + evil,
			`CREATE FUNCTION ` + evil + `.clock_timestamp() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'stolen'; END $$`,
			`CREATE FUNCTION ` + evil + `.sha256(bytea) RETURNS bytea LANGUAGE plpgsql AS $$ BEGIN RAISE 'stolen'; END $$`,
			`SET LOCAL search_path = ` + evil + `, pg_catalog`,
			`SELECT ` + db.Schema + `.enqueue('a', '', key => 'k', lock_key => true)`,
			`SELECT ` + db.Schema + `.` + batch(nil),
		} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return errRollback
	})
	require.ErrorIs(t, err, errRollback)
}

var errRollback = errors.New("roll back")

func TestTheDoorbellRingsOnlyWhileTheRelaySleeps(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	conn, err := pgx.Connect(t.Context(), db.Direct) // LISTEN lasts as long as its session
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	channel := db.Schema + "_outbox"
	_, err = conn.Exec(t.Context(), `LISTEN `+channel)
	require.NoError(t, err)
	marks := 0
	// rings enqueues both ways, then sends a mark of its own, and counts what comes before the mark.
	rings := func(doorbell int, statements ...string) int {
		_, err := db.Pool.Exec(t.Context(), `SELECT setval('`+db.Schema+`.outbox_doorbell', $1)`, doorbell)
		require.NoError(t, err)
		for _, s := range statements {
			_, err := call(t, db, s)
			require.NoError(t, err)
		}
		marks++
		mark := fmt.Sprint("mark ", marks)
		_, err = db.Pool.Exec(t.Context(), `SELECT pg_notify($1, $2)`, channel, mark)
		require.NoError(t, err)
		for n := 0; ; n++ {
			got, err := conn.WaitForNotification(t.Context())
			require.NoError(t, err)
			if got.Payload == mark {
				return n
			}
		}
	}
	one, many := `enqueue('a', '')`, batch(nil)
	require.Zero(t, rings(1, one, many))
	require.Equal(t, 2, rings(2, one, many))
	onceMany := batch(map[int]string{15: "true"})
	require.Equal(t, 1, rings(2, onceMany))
	require.Zero(t, rings(2, onceMany), "nothing was written, so there is nothing to fetch")
}
