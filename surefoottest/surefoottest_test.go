package surefoottest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/surefoottest"
)

func TestMain(m *testing.M) { testkit.MainWithExamples(m) }

func options(db testkit.DB) surefoottest.Options {
	return surefoottest.Options{Pool: db.Pool, Schema: db.Schema, Queue: "q"}
}

var created = message.Message{ID: "order-1", Type: "order.created", Key: "1", Payload: []byte(`{}`), CorrelationID: "c"}

// reserve is a handler with an effect and an event.
func reserve(db testkit.DB) consumer.Handler {
	return func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if _, err := tx.Exec(ctx, `INSERT INTO `+db.Schema+`.effects (id) VALUES ($1)`, m.ID); err != nil {
			return err
		}
		return outbox.Enqueue(ctx, tx, message.Message{Type: "stock.reserved", Key: m.Key}, message.Message{Type: "mail.wanted"})
	}
}

// withEffects adds a table that counts the handler's effects.
func withEffects(t *testing.T) (testkit.DB, func() int) {
	t.Helper()
	db := testkit.Database(t)
	_, err := db.Pool.Exec(t.Context(), `CREATE TABLE `+db.Schema+`.effects (id text)`)
	require.NoError(t, err)
	return db, func() (n int) {
		require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+db.Schema+`.effects`).Scan(&n))
		return n
	}
}

func TestHandleShowsEffectsAndEvents(t *testing.T) {
	t.Parallel()
	db, effects := withEffects(t)
	got := surefoottest.HandleTwice(t, options(db), reserve(db), created)
	require.Equal(t, consumer.Done, got.Fate)
	require.NoError(t, got.Err)
	require.Equal(t, 1, got.Ran)
	require.Len(t, got.Enqueued, 2)
	require.Equal(t, "stock.reserved", got.Enqueued[0].Type)
	require.Equal(t, "mail.wanted", got.Enqueued[1].Type)
	require.Equal(t, []string{"1", "c", "order-1"}, []string{got.Enqueued[0].Key, got.Enqueued[0].CorrelationID, got.Enqueued[0].CausationID})
	require.Equal(t, 1, effects())

	other := options(db)
	other.Queue = "another"
	require.Equal(t, consumer.Done, surefoottest.Handle(t, other, reserve(db), created).Fate, "each consumer has an inbox of its own")
	require.Equal(t, 2, effects())
}

func TestHandleDecidesAsTheConsumer(t *testing.T) {
	t.Parallel()
	db, effects := withEffects(t)
	away := errors.New("away")
	ladder := []consumer.Tier{{Queue: "q.retry.1s", Delay: time.Second}, {Queue: "q.retry.1m", Delay: time.Minute}}
	failing := func(err error) consumer.Handler {
		return func(ctx context.Context, tx pgx.Tx, m message.Message) error {
			if doing := reserve(db)(ctx, tx, m); doing != nil {
				return doing
			}
			return err
		}
	}
	for name, tt := range map[string]struct {
		handler  consumer.Handler
		attempts int
		want     consumer.Rehearsal
	}{
		"first failure":  {failing(away), 0, consumer.Rehearsal{Fate: consumer.Retried, Class: resilience.ClassUnknown, Attempts: 1, Queue: "q.retry.1s", Delay: time.Second}},
		"second failure": {failing(away), 1, consumer.Rehearsal{Fate: consumer.Retried, Class: resilience.ClassUnknown, Attempts: 2, Queue: "q.retry.1m", Delay: time.Minute}},
		"last failure":   {failing(away), 2, consumer.Rehearsal{Fate: consumer.Dead, Class: resilience.ClassUnknown, Attempts: 3, Queue: "q.dlq"}},
		"permanent":      {failing(consumer.Permanent(away)), 0, consumer.Rehearsal{Fate: consumer.Dead, Class: resilience.ClassPermanent, Attempts: 1, Queue: "q.dlq"}},
		"retry after": {failing(consumer.RetryAfter(away, 30*time.Second)), 0, consumer.Rehearsal{
			Fate: consumer.Retried, Class: resilience.ClassTransient, Attempts: 1, Queue: "q.retry.1m", Delay: time.Minute,
		}},
		"retry after more than the ladder": {failing(consumer.RetryAfter(away, time.Hour)), 0, consumer.Rehearsal{
			Fate: consumer.Retried, Class: resilience.ClassTransient, Attempts: 1, Queue: "q.retry.1m", Delay: time.Hour,
		}},
		"unavailable": {failing(consumer.Unavailable(away)), 0, consumer.Rehearsal{Fate: consumer.Held, Class: resilience.ClassUnavailable}},
		"malformed":   {failing(&consumer.MalformedError{Err: away}), 0, consumer.Rehearsal{Fate: consumer.Dead, Class: consumer.ClassMalformed, Attempts: 1, Queue: "q.dlq"}},
	} {
		o := options(db)
		o.Retry, o.MaxAttempts = ladder, 3
		m := created
		m.Attempts = tt.attempts
		got := surefoottest.Handle(t, o, tt.handler, m)
		require.ErrorIs(t, got.Err, away, name)
		require.Empty(t, got.Enqueued, name)
		require.Equal(t, 1, got.Ran, name)
		got.Err = nil
		require.Equal(t, tt.want, got.Rehearsal, name)
		require.Zero(t, effects(), "%s: rolled back", name)
	}
}

func TestHandleCatchesPanicsAndMissingIDs(t *testing.T) {
	t.Parallel()
	db, _ := withEffects(t)
	got := surefoottest.Handle(t, options(db), func(context.Context, pgx.Tx, message.Message) error { panic("boo") }, created)
	require.Equal(t, []any{consumer.Dead, consumer.ClassPanic}, []any{got.Fate, got.Class})
	require.ErrorContains(t, got.Err, "boo")

	got = surefoottest.Handle(t, options(db), reserve(db), message.Message{Type: "a"})
	require.Equal(t, []any{consumer.Dead, consumer.ClassNoID, 0}, []any{got.Fate, got.Class, got.Ran})
	require.ErrorContains(t, got.Err, "must set ID")
	o := options(db)
	o.AllowNoID = true
	require.Equal(t, consumer.Done, surefoottest.Handle(t, o, reserve(db), message.Message{Type: "a"}).Fate)
}

func TestHandleRunsAgainAfterADeadlock(t *testing.T) {
	t.Parallel()
	db, effects := withEffects(t)
	runs := 0
	got := surefoottest.Handle(t, options(db), func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if runs++; runs == 1 {
			if err := reserve(db)(ctx, tx, m); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `DO $$ BEGIN RAISE 'deadlock' USING ERRCODE = '40P01'; END $$`)
			return err
		}
		return reserve(db)(ctx, tx, m)
	}, created)
	require.Equal(t, consumer.Done, got.Fate)
	require.Equal(t, 2, got.Ran)
	require.Len(t, got.Enqueued, 2)
	require.Equal(t, 1, effects())
}

// What a try enqueued whose COMMIT was refused is not taken for the last try's.
func TestHandleForgetsWhatAnEarlierTryEnqueued(t *testing.T) {
	t.Parallel()
	db, effects := withEffects(t)
	_, err := db.Pool.Exec(t.Context(), strings.ReplaceAll(`
		CREATE FUNCTION @.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now' USING ERRCODE = '40001'; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON @.effects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION @.refuse()`, "@", db.Schema))
	require.NoError(t, err)
	runs := 0
	got := surefoottest.Handle(t, options(db), func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if runs++; runs == 2 {
			return consumer.Permanent(errors.New("no"))
		}
		return reserve(db)(ctx, tx, m)
	}, created)
	require.Equal(t, []any{consumer.Dead, 2}, []any{got.Fate, got.Ran})
	require.Empty(t, got.Enqueued)
	require.Zero(t, effects())
}

// spy records what a helper reports instead of failing the test.
type spy struct {
	testing.TB
	text string
}

func (s *spy) Helper() {}
func (s *spy) Fatalf(format string, args ...any) {
	s.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func fatal(t *testing.T, f func(t testing.TB)) string {
	t.Helper()
	s := &spy{TB: t}
	done := make(chan struct{})
	go func() { defer close(done); f(s) }()
	<-done
	return s.text
}

func TestHelpersFailTheTestWhenTheyMust(t *testing.T) {
	t.Parallel()
	db, _ := withEffects(t)
	fails := func(context.Context, pgx.Tx, message.Message) error { return errors.New("no") }
	require.Contains(t, fatal(t, func(t testing.TB) { surefoottest.HandleTwice(t, options(db), fails, created) }), "first delivery is retry (no), not done") //nolint:thelper // the case itself, not a helper
	o := options(db)
	o.AllowNoID = true
	require.Contains(t, fatal(t, func(t testing.TB) { surefoottest.HandleTwice(t, o, reserve(db), message.Message{Type: "a"}) }), "must be a duplicate") //nolint:thelper // the case itself, not a helper
	require.Contains(t, fatal(t, func(t testing.TB) { surefoottest.Handle(t, surefoottest.Options{}, reserve(db), created) }), "Pool is nil")            //nolint:thelper // the case itself, not a helper
	o.Schema = "no_such_schema"
	require.Contains(t, fatal(t, func(t testing.TB) { surefoottest.Handle(t, o, reserve(db), created) }), "surefoot migrate up") //nolint:thelper // the case itself, not a helper
	require.Contains(t, fatal(t, func(t testing.TB) { surefoottest.Schema(t, "postgres://a:hunter2@h:x/") }), "make a schema")   //nolint:thelper // the case itself, not a helper
	require.Contains(t, fatal(t, func(t testing.TB) { surefoottest.Schema(t, "") }), "the database URL is empty")                //nolint:thelper // the case itself, not a helper
	tx, err := db.Pool.Begin(t.Context())
	require.NoError(t, err)
	require.Contains(t, fatal(t, func(t testing.TB) { surefoottest.Enqueued(t, t.Context(), tx, "no_such_schema") }), "surefoot migrate up") //nolint:thelper // a case, not a helper
	require.NoError(t, tx.Rollback(t.Context()))
}

func TestEnqueuedSeesThisTransactionOnly(t *testing.T) {
	t.Parallel()
	db, _ := withEffects(t)
	ctx := outbox.WithSchema(t.Context(), db.Schema)
	begin := func() pgx.Tx {
		tx, err := db.Pool.Begin(t.Context())
		require.NoError(t, err)
		return tx
	}
	before := begin()
	require.NoError(t, outbox.Enqueue(ctx, before, message.Message{Type: "before"}))
	require.NoError(t, before.Commit(t.Context()))
	tx := begin()
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	require.Empty(t, surefoottest.Enqueued(t, t.Context(), tx, db.Schema), "a transaction that wrote nothing")
	nested, err := tx.Begin(t.Context())
	require.NoError(t, err)
	want := message.Message{ID: "1", Type: "a", Payload: []byte(strings.Repeat("x", 3000)), Headers: message.Headers{"n": int64(1)}, ContentType: "t", OccurredAt: time.Unix(9, 0)}
	require.NoError(t, outbox.Enqueue(ctx, nested, want))
	require.NoError(t, nested.Commit(t.Context()))
	got := surefoottest.Enqueued(t, t.Context(), tx, db.Schema)
	require.Len(t, got, 1, "a savepoint belongs to its transaction")
	require.Equal(t, got, surefoottest.Enqueued(t, ctx, tx), "the schema of the context")
	got[0].OccurredAt = want.OccurredAt
	require.Equal(t, want, got[0])
}

func TestSchemaIsMigratedAndDropped(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	var schema string
	t.Run("inside", func(t *testing.T) {
		schema = surefoottest.Schema(t, db.URL)
		_, err := db.Pool.Exec(t.Context(), `SELECT `+schema+`.enqueue('a', '')`)
		require.NoError(t, err)
	})
	var there bool
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, schema).Scan(&there))
	require.False(t, there)
}
