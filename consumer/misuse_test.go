package consumer_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/message"
)

// misuses are what a handler must not do, by what the record says of it.
func misuses(w *world) map[string]consumer.Handler {
	sql := func(statements ...string) consumer.Handler {
		return func(ctx context.Context, tx pgx.Tx, _ message.Message) error {
			for _, statement := range statements {
				if _, err := tx.Exec(ctx, statement); err != nil {
					return err
				}
			}
			return nil
		}
	}
	write := `INSERT INTO ` + w.db.Schema + `.effects (id) VALUES ('misuse')`
	return map[string]consumer.Handler{
		"rollback":           sql("ROLLBACK"),
		"rollback and chain": sql("ROLLBACK AND CHAIN", write),
		"rollback and begin": sql("ROLLBACK", "BEGIN", write),
		"commit":             sql("COMMIT"),
		"commit and chain":   sql("COMMIT AND CHAIN", write),
		"pgx rollback":       func(ctx context.Context, tx pgx.Tx, _ message.Message) error { return tx.Rollback(ctx) },
		"open rows": func(ctx context.Context, tx pgx.Tx, _ message.Message) error {
			_, err := tx.Query(ctx, "SELECT generate_series(1, 100000)") //nolint:sqlclosecheck // that is the fault
			return err
		},
		"commit with open rows": func(ctx context.Context, tx pgx.Tx, _ message.Message) error {
			_, err := tx.Query(ctx, "SELECT generate_series(1, 100000)") //nolint:sqlclosecheck // that is the fault
			return errors.Join(err, tx.Commit(ctx))
		},
	}
}

// However a handler ends or blocks the transaction, its message is never acknowledged without its inbox row, the database
// is not taken to be away, and the others are not hurt.
func TestAMisusedTransactionIsTheHandlersFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	wrong := misuses(w)
	o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if misuse, known := wrong[m.ID]; known {
			return misuse(ctx, tx, m)
		}
		return w.effect(ctx, tx, m)
	})
	o.MaxAttempts = 1
	w.start(o)
	for id := range wrong {
		w.publish(id, "good "+id)
	}
	texts := map[string]string{"open rows": "still read from", "commit with open rows": "conn busy"}
	for range wrong {
		d := w.get("q.dlq")
		f := message.FailureOf(d.Headers)
		text, other := texts[d.MessageId]
		if !other {
			text = "ended the transaction"
		}
		require.Contains(t, f.Message, text, d.MessageId)
		if d.MessageId != "commit with open rows" {
			require.Equal(t, "permanent", f.Class, d.MessageId)
		}
	}
	w.awaitEffects(len(wrong))
	w.awaitEmpty("q.retry", "q.dlq")
	require.NotContains(t, w.effects(), "misuse")
	require.Empty(t, w.logs.find("dependency away, holding messages uncounted"))
}

// The mark of the transaction is a name that a handler may change.
func TestAHandlerMayNameItsSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.publish("1", "2")
	w.start(w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if _, err := tx.Exec(ctx, "SET LOCAL application_name = 'billing'"); err != nil {
			return err
		}
		return w.effect(ctx, tx, m)
	}))
	w.awaitEffects(2)
	w.awaitEmpty("q", "q.retry", "q.dlq")
}

func TestASuspectThatLeavesRowsOpenIsBoundedToo(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.publish("rows")
	d, ok, err := w.ch.Get("q", false)
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, d.Nack(false, true)) // now it is redelivered
	w.start(w.options(misuses(w)["open rows"]))
	require.Contains(t, message.FailureOf(w.get("q.dlq").Headers).Message, "still read from")
}

// What a producer writes into any property must not stop the queue, also not once its message was redelivered.
func TestHostileTextsOfARedeliveredMessageStopNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	const hostile = "a\x00\xff\x1b[31m"
	headers := amqp.Table{}
	for _, name := range []string{
		message.HeaderReprocess, message.HeaderKey, message.HeaderRequestID, message.HeaderCausationID, message.HeaderTraceParent,
		message.HeaderAttempts, message.HeaderRedriveRun, message.HeaderOriginQueue, "tenant",
	} {
		headers[name] = hostile
	}
	w.send(amqp.Publishing{MessageId: hostile, Type: hostile, AppId: hostile, CorrelationId: hostile, Headers: headers})
	w.publish("1", "2")
	d, ok, err := w.ch.Get("q", false)
	require.NoError(t, err)
	require.True(t, ok)
	require.NoError(t, d.Nack(false, true))
	w.start(w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		m.ID, m.Key = message.Storable(m.ID, 64), ""
		return w.effect(ctx, tx, m)
	}))
	w.awaitEffects(3)
	w.awaitEmpty("q.retry", "q.dlq")
	require.Empty(t, w.logs.find("dependency away, holding messages uncounted"))
}

// A handler may decode or decrypt in place: what is retried and dead-lettered is what was published.
func TestWhatAHandlerDoesToItsMessageStaysItsOwn(t *testing.T) {
	t.Parallel()
	headers := func() amqp.Table {
		return amqp.Table{"plain": "x", "bytes": []byte("abc"), "list": []any{"x", amqp.Table{"deep": "x"}}, "table": amqp.Table{"in": "x"}}
	}
	spoil := func(m message.Message) error {
		if m.Headers["plain"] != "x" || string(m.Payload) != `{"n":0}` {
			return consumer.Permanent(errors.New("it was spoiled before"))
		}
		for i := range m.Payload {
			m.Payload[i] = 'X'
		}
		m.Headers["bytes"].([]byte)[0] = 'X'
		m.Headers["list"].([]any)[1].(amqp.Table)["deep"] = "spoiled"
		m.Headers["table"].(amqp.Table)["in"] = "spoiled"
		m.Headers["plain"] = "spoiled"
		return errors.New("try again")
	}
	for name, handler := range map[string]func(*consumer.Options){
		"handler": func(o *consumer.Options) {
			o.Handler = func(_ context.Context, _ pgx.Tx, m message.Message) error { return spoil(m) }
		},
		"plain": func(o *consumer.Options) {
			o.Plain = func(_ context.Context, m message.Message) error { return spoil(m) }
		},
		"batch": func(o *consumer.Options) {
			o.Batch = consumer.Each(func(_ context.Context, _ pgx.Tx, m message.Message) error { return spoil(m) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			o := w.options(nil)
			o.Handler, o.MaxAttempts = nil, 2
			handler(&o)
			for i := range 2 {
				w.send(amqp.Publishing{MessageId: strconv.Itoa(i), Type: "x", Body: []byte(`{"n":0}`), Headers: headers()})
			}
			w.start(o)
			for range 2 {
				d := w.get("q.dlq")
				require.Equal(t, `{"n":0}`, string(d.Body))
				require.Equal(t, "try again", message.FailureOf(d.Headers).Message)
				for name, value := range headers() {
					require.Equal(t, value, d.Headers[name], name)
				}
			}
		})
	}
}

// A handler that does not return holds its place, and as a suspect the whole queue: that is told while it lasts.
func TestAHandlerThatIgnoresItsDeadlineIsToldOf(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	g := newGate()
	o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if m.ID == "hangs" && m.Attempts == 0 {
			return g.pass(context.WithoutCancel(ctx), m.ID)
		}
		return w.effect(ctx, tx, m)
	})
	o.Timeout = 300 * time.Millisecond
	ready := watchReady(&o)
	w.start(o)
	w.publish("hangs", "other")
	ready.await(t, "1 handlers run past their deadline of 300ms")
	told := w.logs.find("handler ignores its deadline and holds its place")
	require.Len(t, told, 1)
	require.Equal(t, []any{"error", "hangs", "q"}, []any{told[0]["level"], told[0]["event_id"], told[0]["queue"]})
	close(g.open)
	ready.await(t, "")
	w.awaitEffects(1)
	require.Len(t, w.logs.find("handler has ended after its deadline"), 1)
}

// nilError is Go's classic: a nil pointer in an error that is not nil.
type nilError struct{ text string }

func (e *nilError) Error() string { return e.text }

// speechlessError panics in a method that only the record asks for.
type speechlessError struct{}

func (speechlessError) Error() string        { return "x" }
func (speechlessError) FailureStack() string { panic("no stack") }

func TestAnErrorThatPanicsIsThePanicOfItsHandler(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"typed nil": (*nilError)(nil), "record": speechlessError{}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			w.start(w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
				if m.ID == "bad" {
					return err
				}
				return w.effect(ctx, tx, m)
			}))
			w.publish("1", "bad", "2")
			f := message.FailureOf(w.get("q.dlq").Headers)
			require.Equal(t, "panic", f.Class)
			require.Contains(t, f.Stack, "misuse_test.go")
			w.awaitEffects(2)
			w.awaitEmpty("q.retry", "q.dlq")
		})
	}
}
