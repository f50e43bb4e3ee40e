package deadletter_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	work = "orders.saga"
	dlq  = "orders.saga.dlq"
)

// stage is a vhost with the queues of one consumer, as the topology declares them, and a schema.
type stage struct {
	testing.TB
	db      testkit.DB
	broker  testkit.AMQP
	conn    *amqp.Connection
	ch      *amqp.Channel
	letters *deadletter.DeadLetters
}

func newStage(t testing.TB, change ...func(*deadletter.Options)) *stage {
	t.Helper()
	return newStageOn(t, testkit.Broker(t), change...)
}

func newStageOn(t testing.TB, broker testkit.AMQP, change ...func(*deadletter.Options)) *stage {
	t.Helper()
	s := &stage{TB: t, db: testkit.Database(t), broker: broker}
	var err error
	s.conn, err = amqp.Dial(broker.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.conn.Close() })
	s.ch, err = s.conn.Channel()
	require.NoError(t, err)
	require.NoError(t, s.ch.Confirm(false))
	s.topology()
	s.letters = s.deadLetters(change...)
	return s
}

func (s *stage) deadLetters(change ...func(*deadletter.Options)) *deadletter.DeadLetters {
	s.Helper()
	opts := deadletter.Options{
		Pool: s.db.Pool, Schema: s.db.Schema, AMQPURL: s.broker.URL, ManagementURL: s.broker.ManagementURL,
		Queues: []deadletter.Queue{{Name: work, Owner: "team-orders", Runbook: "docs/runbooks/dlq.md"}},
		Logger: testkit.Logger(s),
	}
	for _, c := range change {
		c(&opts)
	}
	d, err := deadletter.New(opts)
	require.NoError(s, err)
	return d
}

func (s *stage) topology() {
	s.Helper()
	for _, x := range []string{"shop.events.dlx", "shop.events.retry"} {
		require.NoError(s, s.ch.ExchangeDeclare(x, "direct", true, false, false, false, nil))
	}
	s.declare(dlq, amqp.Table{"x-delivery-limit": int32(1_000_000)})
	s.declare(work+".retry", amqp.Table{
		"x-message-ttl": int32(300), "x-dead-letter-exchange": "shop.events.retry", "x-dead-letter-routing-key": work,
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	})
	s.declare(work, amqp.Table{
		"x-delivery-limit": int32(2), "x-dead-letter-exchange": "shop.events.dlx", "x-dead-letter-routing-key": work,
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
	})
	require.NoError(s, s.ch.QueueBind(dlq, work, "shop.events.dlx", false, nil))
	require.NoError(s, s.ch.QueueBind(work, work, "shop.events.retry", false, nil))
}

func (s *stage) declare(name string, args amqp.Table) {
	s.Helper()
	args["x-queue-type"] = "quorum"
	_, err := s.ch.QueueDeclare(name, true, false, false, false, args)
	require.NoError(s, err, name)
}

// letter is a dead letter as the consumer writes it.
func letter(id, typ, class, text string) amqp.Publishing {
	h := amqp.Table{message.HeaderKey: "key-" + id, "tenant": "acme", message.HeaderAttempts: int64(5)}
	message.SetOrigin(h, message.Origin{Exchange: "shop.events", RoutingKey: typ, Queue: work})
	message.Failure{Class: class, Type: "*errors.errorString", Message: text, Stack: "main.go:1"}.Write(h, 5)
	return amqp.Publishing{
		Headers: h, MessageId: id, Type: typ, ContentType: "application/json", DeliveryMode: amqp.Persistent,
		Body: []byte(`{"order":"` + id + `"}`),
	}
}

// fill puts messages into a queue, confirmed, in order.
func (s *stage) fill(queue string, messages ...amqp.Publishing) {
	s.Helper()
	var last []*amqp.DeferredConfirmation
	for _, m := range messages {
		confirm, err := s.ch.PublishWithDeferredConfirm("", queue, true, false, m)
		require.NoError(s, err)
		last = append(last, confirm)
	}
	for _, confirm := range last {
		require.True(s, confirm.Wait(), "fill %s", queue)
	}
	s.waitFor(queue, len(messages))
}

func (s *stage) waitFor(queue string, atLeast int) {
	s.Helper()
	testkit.Eventually(s, 20*time.Second, fmt.Sprintf("%d messages in %s", atLeast, queue), func() bool { return s.count(queue) >= atLeast })
}

func (s *stage) count(queue string) int {
	s.Helper()
	q, err := s.ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	require.NoError(s, err)
	return q.Messages
}

// take consumes and removes everything, and returns it in order.
func (s *stage) take(queue string) []amqp.Delivery {
	s.Helper()
	n := s.count(queue)
	ch, err := s.conn.Channel()
	require.NoError(s, err)
	deliveries, err := ch.Consume(queue, "", true, false, false, false, nil)
	require.NoError(s, err)
	taken := make([]amqp.Delivery, 0, n)
	limit := time.After(20 * time.Second)
	for len(taken) < n {
		select {
		case d := <-deliveries:
			taken = append(taken, d)
		case <-limit:
			require.Fail(s, "messages missing", "%s: %d of %d", queue, len(taken), n)
		}
	}
	require.NoError(s, ch.Close())
	return taken
}

func (s *stage) ids(queue string) []string {
	s.Helper()
	return idsOf(s.take(queue))
}

func idsOf(deliveries []amqp.Delivery) []string {
	ids := make([]string, len(deliveries))
	for i, d := range deliveries {
		ids[i] = d.MessageId
	}
	return ids
}

// batch makes n letters with ids prefix0000 and so on.
func batch(prefix string, n int, typ string) (letters []amqp.Publishing, ids []string) {
	for i := range n {
		id := fmt.Sprintf("%s%05d", prefix, i)
		letters, ids = append(letters, letter(id, typ, "transient", "provider said 503")), append(ids, id)
	}
	return letters, ids
}

func (s *stage) redrive(change ...func(*deadletter.RedriveRequest)) (deadletter.Result, error) {
	s.Helper()
	r := deadletter.RedriveRequest{Common: deadletter.Common{Queue: work, Who: "ann@test"}}
	for _, c := range change {
		c(&r)
	}
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	return s.letters.Redrive(ctx, r)
}

func only(f deadletter.Filter) func(*deadletter.RedriveRequest) {
	return func(r *deadletter.RedriveRequest) { r.Filter = f }
}

type auditRow struct {
	Action, Who, MessageID, Outcome, Reason string
}

func (s *stage) audit() []auditRow {
	s.Helper()
	rows, err := s.db.Pool.Query(s.Context(), "SELECT action, who, message_id, outcome, reason FROM "+s.db.Schema+".audit ORDER BY id")
	require.NoError(s, err)
	var all []auditRow
	for rows.Next() {
		var r auditRow
		require.NoError(s, rows.Scan(&r.Action, &r.Who, &r.MessageID, &r.Outcome, &r.Reason))
		all = append(all, r)
	}
	require.NoError(s, rows.Err())
	return all
}
