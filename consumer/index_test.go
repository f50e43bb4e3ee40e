package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

func (w *world) indexed() (live int) {
	w.t.Helper()
	require.NoError(w.t, w.db.Pool.QueryRow(w.t.Context(), `SELECT count(*) FROM `+w.db.Schema+`.dlq_letters WHERE gone_at IS NULL`).Scan(&live))
	return live
}

func (w *world) awaitIndexed(n int) {
	w.t.Helper()
	testkit.Eventually(w.t, soon, "index rows", func() bool { return w.indexed() == n })
}

// A dead letter is in the index soon after it is in its queue, with its cause: ids and numbers make no groups of their own.
func TestDeadLettersAreIndexed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.start(w.options(func(_ context.Context, _ pgx.Tx, m message.Message) error {
		return resilience.Permanent(&resilience.StatusError{Status: 400, Err: textError("no order " + m.ID)})
	}))
	w.publish("o-1", "o-2", "o-3")
	w.send(amqp.Publishing{Type: "order.created", Body: []byte(`{}`)}) // no id: dead with another class
	w.awaitIndexed(4)
	var groups, of int
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), `
SELECT count(*), max(n) FROM (SELECT g.id, count(*) AS n FROM `+w.db.Schema+`.dlq_groups g JOIN `+w.db.Schema+`.dlq_letters l ON l.group_id = g.id
JOIN `+w.db.Schema+`.dlq_queues q ON q.id = g.queue_id WHERE q.queue = 'q' AND g.version = 'test' GROUP BY g.id) x`).Scan(&groups, &of))
	require.Equal(t, []int{2, 3}, []int{groups, of})
}

type textError string

// Error implements error.
func (e textError) Error() string { return string(e) }

// An index that cannot be written costs nothing: messages go on to be dead-lettered, and the rows follow.
func TestTheIndexIsNotInTheWay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	_, err := w.db.Pool.Exec(t.Context(), `ALTER TABLE `+w.db.Schema+`.dlq_letters RENAME TO elsewhere`)
	require.NoError(t, err)
	stop := w.start(w.options(func(context.Context, pgx.Tx, message.Message) error { return resilience.Permanent(textError("no")) }))
	w.publish("a", "b", "c")
	testkit.Eventually(t, soon, "three dead letters", func() bool {
		q, err := w.ch.QueueDeclarePassive("q.dlq", true, false, false, false, nil)
		return err == nil && q.Messages == 3
	})
	testkit.Eventually(t, soon, "a warning", func() bool {
		return len(w.logs.find("dead letters not indexed yet, trying again; they are in their queue")) > 0
	})
	_, err = w.db.Pool.Exec(t.Context(), `ALTER TABLE `+w.db.Schema+`.elsewhere RENAME TO dlq_letters`)
	require.NoError(t, err)
	w.awaitIndexed(3)
	w.publish("d")
	w.get("q.dlq")
	began := time.Now()
	stop()
	require.Less(t, time.Since(began), 10*time.Second)
	require.Equal(t, 4, w.indexed(), "what is left is written at the end")
}

// Panics with one text in two handlers are two causes; in one handler they are one, whatever the message.
func TestTheFingerprintTellsHandlersApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	w.start(w.options(func(_ context.Context, _ pgx.Tx, m message.Message) error {
		if m.ID == "c" {
			panicElsewhere()
		}
		panic("no order " + m.ID)
	}))
	w.publish("d-1", "d-2", "c")
	prints := map[string]string{}
	for range 3 {
		d := w.get("q.dlq")
		prints[d.MessageId] = message.FailureOf(d.Headers).Fingerprint
	}
	require.Equal(t, prints["d-1"], prints["d-2"])
	require.NotEqual(t, prints["d-1"], prints["c"])
}

func panicElsewhere() {
	panic("no order d-12")
}
