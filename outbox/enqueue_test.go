package outbox_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

// traceParent is one of W3C trace context.
const traceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestEnqueueWritesEveryField(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 678000, time.UTC)
	m := message.Message{
		ID: "id-1", Type: "order.created", Key: "o-1", Exchange: "x", RoutingKey: "r", OccurredAt: at, Source: "shop",
		CorrelationID: "corr", CausationID: "cause", RequestID: "req", ContentType: "text/plain", Payload: []byte("\x00\xff 1.0"),
		Headers: message.Headers{"n": int64(math.MaxInt64), "b": []byte{0}}, TraceParent: traceParent, TraceState: "ts", Attempts: 9,
	}
	tx := begin(t, db)
	n, err := newOutbox(t, db, outbox.Options{Source: "other", Exchange: "other"}).Enqueue(t.Context(), tx, m)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Empty(t, stored(t, db), "not before the commit")
	commit(t, tx)

	got := stored(t, db)
	require.Len(t, got, 1)
	headers := `{"b":{"$bytes":"AA=="},"n":9223372036854775807}`
	require.Equal(t, row{
		ID: got[0].ID, Shard: got[0].Shard, Hash: got[0].Hash, MessageID: "id-1", Type: "order.created", Key: "o-1", Exchange: "x", RoutingKey: "r",
		ContentType: "text/plain", OccurredAt: got[0].OccurredAt, Source: "shop", CorrelationID: "corr", CausationID: "cause",
		RequestID: "req", Parent: traceParent, State: "ts", Headers: &headers, Payload: []byte("\x00\xff 1.0"),
	}, got[0])
	require.True(t, at.Equal(got[0].OccurredAt), "%s", got[0].OccurredAt)
}

func TestEnqueueDefaults(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	tx := begin(t, db)
	_, err := newOutbox(t, db, outbox.Options{Source: "shop", Exchange: "shop.events"}).Enqueue(t.Context(), tx, message.Message{Type: "a"})
	require.NoError(t, err)
	commit(t, tx)
	got := stored(t, db)[0]
	require.Len(t, got.MessageID, 36)
	require.Equal(t, byte('7'), got.MessageID[14], "a UUIDv7")
	require.Equal(t, "shop", got.Source)
	require.Equal(t, "shop.events", got.Exchange)
	require.Equal(t, "application/json", got.ContentType)
	require.Equal(t, []byte{}, got.Payload)
	require.Nil(t, got.Headers)
	require.WithinDuration(t, time.Now(), got.OccurredAt, time.Minute)
}

func TestEnqueueOfNothingTouchesNothing(t *testing.T) {
	t.Parallel()
	n, err := new(outbox.Outbox).Enqueue(t.Context(), nil)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, outbox.Enqueue(t.Context(), nil))
}

func TestEnqueueTakesTheSchemaOfTheContext(t *testing.T) {
	t.Parallel()
	here, there := testkit.Database(t), testkit.Database(t)
	ctx := outbox.WithSchema(t.Context(), there.Schema)
	tx := begin(t, there)
	require.NoError(t, outbox.Enqueue(ctx, tx, message.Message{Type: "a"}))
	require.NoError(t, outbox.Enqueue(ctx, tx, message.Message{Type: "b"}, message.Message{Type: "c"}))
	commit(t, tx)
	require.Len(t, stored(t, there), 3)

	tx = begin(t, here)
	_, err := newOutbox(t, here, outbox.Options{}).Enqueue(ctx, tx, message.Message{Type: "a"})
	require.NoError(t, err, "an outbox's own schema comes first")
	commit(t, tx)
	require.Len(t, stored(t, here), 1)

	err = outbox.Enqueue(outbox.WithSchema(ctx, "a; DROP TABLE x"), begin(t, here), message.Message{Type: "a"})
	require.ErrorContains(t, err, "lower-case letters")
}

func TestRollbackForgets(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	tx := begin(t, db)
	_, err := newOutbox(t, db, outbox.Options{}).Enqueue(t.Context(), tx, message.Message{Type: "a"})
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Empty(t, stored(t, db))
}

func TestIdsFollowTheArguments(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, o := range []outbox.Options{{}, {LockKeys: true}, {Once: true}, {Once: true, LockKeys: true}} {
		tx := begin(t, db)
		var want []string
		var msgs []message.Message
		for i := range 500 {
			// Ids and keys that sort otherwise than they are given.
			id := fmt.Sprintf("%x-%d", sha256.Sum256([]byte{byte(i), byte(i >> 8)}), i)
			msgs = append(msgs, message.Message{ID: id, Type: "a", Key: id[:2]})
			want = append(want, id)
		}
		n, err := newOutbox(t, db, o).Enqueue(t.Context(), tx, msgs...)
		require.NoError(t, err)
		require.Equal(t, 500, n)
		commit(t, tx)
		require.Equal(t, want, ids(stored(t, db)), "%+v", o)
		_, err = db.Pool.Exec(t.Context(), "TRUNCATE "+db.Schema+".outbox, "+db.Schema+".outbox_once")
		require.NoError(t, err)
	}
}

// The hash must be the same in every version and on every server: a key must never change its shard.
func TestHashIsTheFirst64BitsOfSHA256(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	tx := begin(t, db)
	var msgs []message.Message
	for i := range 200 {
		msgs = append(msgs, message.Message{ID: fmt.Sprintf("id-%d", i), Type: "a", Key: fmt.Sprintf("Schlüssel-%d-日本", i)})
	}
	msgs = append(msgs, message.Message{ID: "without key", Type: "a"})
	box := newOutbox(t, db, outbox.Options{})
	_, err := box.Enqueue(t.Context(), tx, msgs...)
	require.NoError(t, err)
	for _, m := range msgs {
		_, err := tx.Exec(t.Context(), `SELECT `+db.Schema+`.enqueue('a', '', key => $1, message_id => $2)`, m.Key, m.ID)
		require.NoError(t, err)
	}
	commit(t, tx)
	shards := map[int16]bool{}
	for _, r := range stored(t, db) {
		text := r.Key
		if text == "" {
			text = r.MessageID
		}
		sum := sha256.Sum256([]byte(text))
		hash := int64(binary.BigEndian.Uint64(sum[:8]))
		require.Equal(t, hash, r.Hash, text)
		require.Equal(t, int16((hash&math.MaxInt64)%8), r.Shard)
		shards[r.Shard] = true
	}
	require.Len(t, shards, 8)
}

func TestEnqueueInsideAHandlerInherits(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	ctx := message.NewContext(t.Context(), message.Message{ID: "cause", CorrelationID: "corr", RequestID: "req\x00"})
	parent := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled,
	})
	ctx = trace.ContextWithSpanContext(ctx, parent)
	tx := begin(t, db)
	_, err := newOutbox(t, db, outbox.Options{}).Enqueue(ctx, tx, message.Message{Type: "a"}, message.Message{Type: "b", CorrelationID: "own", TraceParent: traceParent})
	require.NoError(t, err)
	commit(t, tx)
	got := stored(t, db)
	require.Equal(t, []string{"corr", "cause", "req"}, []string{got[0].CorrelationID, got[0].CausationID, got[0].RequestID})
	require.Equal(t, "00-01000000000000000000000000000000-0200000000000000-01", got[0].Parent)
	require.Equal(t, []string{"own", "cause", traceParent}, []string{got[1].CorrelationID, got[1].CausationID, got[1].Parent})
}

func TestEnqueueInsideARequestTakesItsID(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	ctx := message.WithRequestID(t.Context(), "served")
	tx := begin(t, db)
	_, err := newOutbox(t, db, outbox.Options{}).Enqueue(ctx, tx, message.Message{Type: "a"}, message.Message{Type: "b", RequestID: "own"})
	require.NoError(t, err)
	commit(t, tx)
	got := stored(t, db)
	require.Equal(t, []string{"served", "own"}, []string{got[0].RequestID, got[1].RequestID})
}

func TestWhatTheBrokerWouldChokeOnIsRefusedWithATypedError(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	box := newOutbox(t, db, outbox.Options{MaxBody: 10, Once: true})
	tx := begin(t, db)
	good := message.Message{ID: "good", Type: "a"}
	for field, bad := range map[string]message.Message{
		"Type": {ID: "1"}, "Key": {ID: "1", Type: "a", Key: string(make([]byte, 256))}, "ID": {Type: "a"},
		"RoutingKey": {ID: "1", Type: "a", RoutingKey: "\xff"}, "Payload": {ID: "1", Type: "a", Payload: make([]byte, 11)},
		"Headers": {ID: "1", Type: "a", Headers: message.Headers{"x-death": 1}},
	} {
		n, err := box.Enqueue(t.Context(), tx, good, bad)
		var invalid *message.InvalidError
		require.ErrorAs(t, err, &invalid)
		require.Equal(t, field, invalid.Field)
		require.Zero(t, n)
	}
	// Nothing of it reached the database: the transaction is still fit to be used.
	_, err := box.Enqueue(t.Context(), tx, good)
	require.NoError(t, err)
	commit(t, tx)
	require.Equal(t, []string{"good"}, ids(stored(t, db)))
}

// Headers that fit in AMQP may be six times as long as JSON.
func TestTheLargestHeadersFit(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	box := newOutbox(t, db, outbox.Options{})
	for name, value := range map[string]any{
		"control": string(bytes.Repeat([]byte{1}, 32_000)), "html": string(bytes.Repeat([]byte("<"), 32_000)),
		"nil": slices.Repeat([]any{make([]any, 4096)}, 7), "bytes": make([]byte, 32_000),
	} {
		m := message.Message{Type: "a", Headers: message.Headers{name: value}}
		require.NoError(t, m.Validate(0))
		tx := begin(t, db)
		_, err := box.Enqueue(t.Context(), tx, m)
		require.NoError(t, err, name)
		commit(t, tx)
	}
}

func TestEnqueueInEveryExecMode(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		config, err := pgx.ParseConfig(db.URL)
		require.NoError(t, err)
		config.DefaultQueryExecMode = mode
		conn, err := pgx.ConnectConfig(t.Context(), config)
		require.NoError(t, err)
		tx, err := conn.Begin(t.Context())
		require.NoError(t, err)
		m := message.Message{ID: mode.String(), Type: `t"',{}\`, Key: "NULL", Payload: []byte("\x00'\\"), Headers: message.Headers{"a": `"\'`}}
		_, err = newOutbox(t, db, outbox.Options{}).Enqueue(t.Context(), tx, m, message.Message{Type: "second"})
		require.NoError(t, err, mode)
		require.NoError(t, tx.Commit(t.Context()))
		require.NoError(t, conn.Close(t.Context()))
	}
	got := stored(t, db)
	require.Len(t, got, 10)
	for i := 0; i < 10; i += 2 {
		require.Equal(t, []byte("\x00'\\"), got[i].Payload, got[i].MessageID)
		require.Equal(t, `t"',{}\`, got[i].Type)
		require.Equal(t, "NULL", got[i].Key)
		require.JSONEq(t, `{"a":"\"\\'"}`, *got[i].Headers)
		require.Nil(t, got[i+1].Headers)
		require.WithinDuration(t, time.Now(), got[i].OccurredAt, time.Minute)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	missing, err := outbox.New(outbox.Options{Schema: "no_such_schema"})
	require.NoError(t, err)
	_, err = missing.Enqueue(t.Context(), begin(t, db), message.Message{Type: "a"})
	require.ErrorContains(t, err, "surefoot migrate up")
	for name, o := range map[string]outbox.Options{
		"schema": {Schema: "No Schema"}, "MaxBody": {MaxBody: 128<<20 + 1}, "Source": {Source: "\xff"}, "Exchange": {Exchange: string(make([]byte, 3))},
	} {
		_, err := outbox.New(o)
		require.ErrorContains(t, err, name)
	}
}

func TestTheExpiryOfAJobIsByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	tx := begin(t, db)
	var before time.Time
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT clock_timestamp()`).Scan(&before))
	at := time.UnixMilli(1_900_000_000_123)
	many := message.Headers{}
	for i := range 4096 {
		many[strconv.Itoa(i)] = true // as many as there may be: the expiry is none of them
	}
	_, err := newOutbox(t, db, outbox.Options{}).Enqueue(t.Context(), tx,
		message.Message{Type: "lifetime", Lifetime: time.Hour, Headers: message.Headers{"mine": 1}},
		message.Message{Type: "at", ExpiresAt: at, Lifetime: time.Hour}, message.Message{Type: "never"},
		message.Message{Type: "full", ExpiresAt: at, Headers: many})
	require.NoError(t, err)
	commit(t, tx)
	rows, err := db.Pool.Query(t.Context(), `SELECT coalesce(headers::text, '') FROM `+db.Schema+`.outbox ORDER BY id`)
	require.NoError(t, err)
	stored, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Empty(t, stored[2])
	expiry := func(text string) time.Time {
		headers, err := message.ParseHeadersJSON([]byte(text))
		require.NoError(t, err)
		p, err := message.Message{Type: "t", Headers: headers}.Publishing() // as the relay does
		require.NoError(t, err)
		return message.FromDelivery(&amqp.Delivery{Headers: p.Headers}).ExpiresAt
	}
	require.WithinDuration(t, before.Add(time.Hour), expiry(stored[0]), 10*time.Second)
	require.True(t, expiry(stored[1]).Equal(at))
	require.True(t, expiry(stored[3]).Equal(at))

	for _, bad := range []message.Message{
		{Type: "t", ExpiresAt: time.Unix(5, 0)},
		{Type: "t", Lifetime: -1},
		{Type: "t", Headers: message.Headers{message.HeaderExpiresAt: "soon"}},
	} {
		require.Error(t, bad.Validate(0))
	}
	for value, fault := range map[string]string{"1900000000123": "", "5": "Unix milliseconds", `"1900000000123"`: "Unix milliseconds", "null": "Unix milliseconds"} {
		_, err := db.Pool.Exec(t.Context(), `SELECT `+db.Schema+`.enqueue('t', '', headers => '{"sf-expires-at": `+value+`}')`)
		if fault == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, fault)
		}
	}
}
