package topology_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/topology"
)

func TestApplyTwiceAndAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	queues := []topology.Queue{
		{Name: "orders", Bindings: []string{"order.*"}, SingleActiveConsumer: true},
		{Name: "mail", Bindings: []string{"#"}, Retry: []time.Duration{time.Second, time.Minute}},
	}
	to := s.topology(t, queues...)
	before, err := to.Plan(t.Context())
	require.NoError(t, err)
	require.Equal(t, 3+7+6, before.Pending(false)) // exchanges, queues, bindings

	var all errgroup.Group
	for range 4 {
		all.Go(func() error { _, err := to.Apply(t.Context(), topology.ApplyOptions{}); return err })
	}
	require.NoError(t, all.Wait())

	after, err := to.Plan(t.Context())
	require.NoError(t, err)
	require.Empty(t, after.Changes)
	for _, q := range queues {
		report, err := to.Verify(t.Context(), q.Name)
		require.NoError(t, err)
		require.NoError(t, report.Err())
	}
}

// Three times through the retry queue, as the consumer sends it, then rejected until the delivery limit: the same on all versions.
func TestThreeRetriesThenTheBrokersDeadLetter(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.apply(t, topology.Queue{Name: "work", Bindings: []string{"order.*"}, Retry: []time.Duration{50 * time.Millisecond}})
	s.publish(t, "shop", "order.created", "m")
	sub := s.consume(t, "work")
	for range 3 {
		d := receive(t, sub)
		s.publish(t, "", "work.retry", d.MessageId)
		require.NoError(t, d.Ack(false))
	}
	d := receive(t, sub)
	require.Equal(t, "work", d.RoutingKey, "the retry queue's dead-letter key")
	deliveries := 1
	for s.ready(t, "work.dlq") == 0 {
		require.NoError(t, d.Reject(true))
		select {
		case again := <-sub.Deliveries():
			d = *again
			deliveries++
		case <-time.After(2 * time.Second): // the last one was dead-lettered
		}
		require.LessOrEqual(t, deliveries, 21)
	}
	require.Equal(t, 21, deliveries, "limit 20 gives 21 deliveries")
	letter := receive(t, s.consume(t, "work.dlq"))
	require.Equal(t, "m", letter.MessageId)
	require.NoError(t, letter.Ack(false))
}

func TestAConflictIsExplainedAndLeftAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.apply(t, topology.Queue{Name: "work"}, topology.Queue{Name: "other"})
	s.redeclareWork(t, "work", amqp.Table{"x-queue-type": "classic", "x-delivery-limit": nil, "x-dead-letter-strategy": nil})
	s.publish(t, "", "work", "stays")
	to := s.topology(t, topology.Queue{Name: "work"}, topology.Queue{Name: "more"})
	topology.Hasty(to)

	plan, err := to.Apply(t.Context(), topology.ApplyOptions{Prune: true})
	require.ErrorIs(t, err, topology.ErrConflicts)
	require.Equal(t, 1, plan.Conflicts())
	conflict := find(t, plan, "work")
	require.Equal(t, topology.ActionConflict, conflict.Action)
	for _, part := range []string{"x-queue-type is classic, should be quorum", "x-delivery-limit is not set, should be 20", "work.v2", "--prune"} {
		require.Contains(t, conflict.Detail, part)
	}
	require.Equal(t, 1, s.ready(t, "work"), "the message stays")
	require.Equal(t, 0, s.ready(t, "more"), "the rest is made")
}

func find(t *testing.T, plan topology.Plan, name string) topology.Change {
	t.Helper()
	for _, c := range plan.Changes {
		if c.Name == name {
			return c
		}
	}
	require.Fail(t, "no such change", "%s in %+v", name, plan.Changes)
	return topology.Change{}
}

func TestAnExchangeOfAnotherTypeIsAConflict(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.do(t, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare("shop", "fanout", true, false, false, false, nil)
	})
	plan, err := s.topology(t, topology.Queue{Name: "work"}).Plan(t.Context())
	require.NoError(t, err)
	require.Contains(t, find(t, plan, "shop").Detail, "is fanout durable, should be topic durable")
}

// The way out of a changed name or ladder: the old queues stay while they hold something, and go when they are empty and unused.
func TestPruneDeletesOnlyWhatIsEmptyAndUnused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.apply(t, topology.Queue{Name: "old", Bindings: []string{"#"}, Retry: []time.Duration{time.Hour}})
	s.publish(t, "shop", "order.created", "in old")
	s.publish(t, "", "old.retry", "in retry")
	to := s.topology(t, topology.Queue{Name: "new", Bindings: []string{"#"}})
	plan, err := to.Apply(t.Context(), topology.ApplyOptions{})
	require.NoError(t, err)
	require.False(t, find(t, plan, "old").Done)
	s.publish(t, "shop", "order.created", "in both")
	require.Equal(t, 2, s.ready(t, "old"), "without prune it stays bound")

	topology.Hasty(to)
	plan, err = to.Apply(t.Context(), topology.ApplyOptions{Prune: true})
	require.NoError(t, err)
	require.True(t, find(t, plan, "shop -> old (#)").Done)
	requireKept(t, plan, "old", "it has 2 messages", "old.retry", "old.dlq")
	require.Equal(t, 2, s.ready(t, "old"))
	require.Equal(t, 1, s.ready(t, "old.retry"))

	s.drain(t, "old", 2)
	plan, err = to.Apply(t.Context(), topology.ApplyOptions{Prune: true})
	require.NoError(t, err)
	requireKept(t, plan, "old.retry", "it has 1 messages", "old", "old.dlq")

	s.drain(t, "old.retry", 1)
	s.prune(t, to)
	require.Equal(t, 1, s.ready(t, "new"))
}

// requireKept checks that a queue was kept for what it says, and others of its work queue because of it.
func requireKept(t *testing.T, plan topology.Plan, queue, why string, others ...string) {
	t.Helper()
	require.Contains(t, find(t, plan, queue).Detail, "kept: "+why)
	for _, other := range others {
		require.Contains(t, find(t, plan, other).Detail, "kept: "+queue+" is still there: "+why)
	}
}

// Who consumes from a queue that an earlier spec had needs its retry queue as long as the queue is there.
func TestARetryQueueStaysWithItsWorkQueue(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.apply(t, topology.Queue{Name: "old", Retry: []time.Duration{time.Hour}})
	to := s.topology(t, topology.Queue{Name: "new"})
	topology.Hasty(to)
	s.publish(t, "", "old", "m")
	plan, err := to.Apply(t.Context(), topology.ApplyOptions{Prune: true})
	require.NoError(t, err)
	requireKept(t, plan, "old", "it has 1 messages", "old.retry", "old.dlq")
	require.Zero(t, s.ready(t, "old.retry"), "it is there")
	s.drain(t, "old", 1)

	// The queue is used again after its retry queue was deleted.
	topology.Patient(to)
	applied := make(chan struct{})
	go func() {
		defer close(applied)
		plan, err = to.Apply(t.Context(), topology.ApplyOptions{Prune: true})
	}()
	testkit.Eventually(t, 20*time.Second, "the retry queue to be deleted", func() bool {
		_, _, err := s.conn.Inspect(t.Context(), "old.retry")
		return rabbit.Code(err) == 404
	})
	s.publish(t, "", "old", "m")
	<-applied
	require.NoError(t, err)
	requireKept(t, plan, "old", "", "old.retry", "old.dlq")
	require.False(t, find(t, plan, "old.retry").Done)
	require.Zero(t, s.ready(t, "old.retry"), "it is there again")
}

// prune applies until nothing is left to do: the figures lag.
func (s *stage) prune(t *testing.T, to *topology.Topology) {
	t.Helper()
	topology.Hasty(to)
	testkit.EventuallyNil(t, 40*time.Second, "everything pruned", func() error {
		plan, err := to.Apply(t.Context(), topology.ApplyOptions{Prune: true})
		if err == nil && plan.Pending(true) > 0 {
			err = fmt.Errorf("left: %+v", plan.Changes)
		}
		return err
	})
	left, err := to.Plan(t.Context())
	require.NoError(t, err)
	require.Empty(t, left.Changes)
}

// drain takes n messages and leaves no consumer.
func (s *stage) drain(t *testing.T, queue string, n int) {
	t.Helper()
	sub := s.consume(t, queue)
	for range n {
		require.NoError(t, receive(t, sub).Ack(false))
	}
	require.NoError(t, sub.Close(t.Context()))
	testkit.Eventually(t, 20*time.Second, "no messages and no consumer", func() bool {
		ready, consumers, err := s.conn.Inspect(t.Context(), queue)
		return err == nil && ready+consumers == 0
	})
}

func TestPruneReplacesAnEmptyRetryQueue(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.apply(t, topology.Queue{Name: "work", Retry: []time.Duration{time.Hour}})
	to := s.topology(t, topology.Queue{Name: "work", Retry: []time.Duration{100 * time.Millisecond}})
	plan, err := to.Apply(t.Context(), topology.ApplyOptions{})
	require.ErrorIs(t, err, topology.ErrConflicts)
	require.Contains(t, find(t, plan, "work.retry").Detail, "x-message-ttl is 3600000, should be 100")

	s.prune(t, to)
	s.publish(t, "", "work.retry", "m")
	require.Equal(t, "m", receive(t, s.consume(t, "work")).MessageId)
}

func TestPruneKeepsWhatIsInUse(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	m := s.management(t)
	quorum := amqp.Table{"x-queue-type": "quorum"}
	for _, name := range []string{"consumed", "arriving", "taken", "free"} {
		s.declare(t, name, quorum)
	}
	s.declare(t, "held", amqp.Table{"x-queue-type": "classic"}) // a quorum queue still counts such a consumer
	s.consume(t, "consumed")
	why, err := topology.DeleteEmpty(t.Context(), s.conn, m, "consumed", 0)
	require.NoError(t, err)
	require.Contains(t, why, "1 consumers")

	// Somebody holds a message and does not consume any more: neither ready nor a consumer shows it.
	s.publish(t, "", "held", "m")
	holder := s.consume(t, "held")
	receive(t, holder)
	require.NoError(t, holder.Cancel(t.Context()))
	testkit.Eventually(t, 20*time.Second, "figures of the held message", func() bool {
		q, err := m.Queue(t.Context(), "held")
		return err == nil && q.Messages == 1
	})
	why, err = topology.DeleteEmpty(t.Context(), s.conn, m, "held", 0)
	require.NoError(t, err)
	require.Contains(t, why, "held by somebody")
	require.NoError(t, holder.Close(t.Context()))

	done := make(chan struct{})
	go func() {
		why, err = topology.DeleteEmpty(t.Context(), s.conn, m, "arriving", time.Minute)
		done <- struct{}{}
	}()
	testkit.Eventually(t, 20*time.Second, "the guard", func() bool {
		_, consumers, err := s.conn.Inspect(t.Context(), "arriving")
		return err == nil && consumers == 1
	})
	rival := s.consume(t, "arriving") // of lower priority
	s.publish(t, "", "arriving", "m")
	<-done
	require.NoError(t, rival.Close(t.Context()))
	require.NoError(t, err)
	require.Equal(t, "messages still arrive", why)
	testkit.Eventually(t, 20*time.Second, "the message back in its queue", func() bool { return s.ready(t, "arriving") == 1 })

	// Somebody begins to consume: the guard gets what arrives all the same, and the queue stays.
	go func() {
		why, err = topology.DeleteEmpty(t.Context(), s.conn, m, "taken", time.Second)
		done <- struct{}{}
	}()
	testkit.Eventually(t, 20*time.Second, "the guard", func() bool {
		_, consumers, err := s.conn.Inspect(t.Context(), "taken")
		return err == nil && consumers == 1
	})
	s.consume(t, "taken")
	<-done
	require.NoError(t, err)
	require.Equal(t, "somebody began to consume from it", why)

	why, err = topology.DeleteEmpty(t.Context(), s.conn, m, "free", 0)
	require.NoError(t, err)
	require.Empty(t, why)
	_, _, err = s.conn.Inspect(t.Context(), "free")
	require.Equal(t, 404, rabbit.Code(err))
}

// A message that arrives between the last look and the deletion is saved.
func TestAMessageThatComesWithTheDeletionIsPutBack(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	arguments := amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(7)}
	s.declare(t, "q", arguments)
	const n = 50
	late, err := topology.PutBackLate(t.Context(), s.conn, "q", topology.QueueState{Durable: true, Arguments: arguments}, func() {
		for i := range n {
			s.publish(t, "", "q", strconv.Itoa(i))
		}
	})
	require.NoError(t, err)
	require.Len(t, late, n)
	sub := s.consume(t, "q")
	for i := range n {
		d := receive(t, sub)
		require.Equal(t, strconv.Itoa(i), d.MessageId, "in their order")
		require.NoError(t, d.Ack(false))
	}
}

func TestWithoutManagement(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	to, err := topology.New(topology.Options{
		Spec: topology.Spec{Exchange: "shop", Queues: []topology.Queue{{Name: "work"}}}, URL: s.URL, ManagementURL: "http://127.0.0.1:1",
	})
	require.NoError(t, err)
	_, err = to.Plan(t.Context())
	require.ErrorIs(t, err, topology.ErrManagement)
	require.ErrorIs(t, err, rabbit.ErrManagementUnreachable)
	_, err = to.Apply(t.Context(), topology.ApplyOptions{Prune: true})
	require.ErrorIs(t, err, topology.ErrManagement)

	for range 2 {
		_, err = to.Apply(t.Context(), topology.ApplyOptions{})
		require.NoError(t, err)
	}
	seen, err := s.topology(t, topology.Queue{Name: "work"}).Plan(t.Context())
	require.NoError(t, err)
	require.Empty(t, seen.Changes)

	s.redeclareDLQ(t, "work", amqp.Table{"x-delivery-limit": 20})
	plan, err := to.Apply(t.Context(), topology.ApplyOptions{})
	require.ErrorIs(t, err, topology.ErrConflicts)
	require.Contains(t, find(t, plan, "work.dlq").Detail, "x-delivery-limit")
}

func TestAForeignBindingIsOnlyRemovedWithPrune(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.apply(t, topology.Queue{Name: "work", Bindings: []string{"a"}})
	s.do(t, func(ch *amqp.Channel) error {
		return ch.QueueBind("work", "b", "amq.headers", false, amqp.Table{"x-match": "all", "n": int32(1)})
	})
	to := s.topology(t, topology.Queue{Name: "work", Bindings: []string{"c"}})
	plan, err := to.Apply(t.Context(), topology.ApplyOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, plan.Pending(true), "%+v", plan.Changes)
	plan, err = to.Apply(t.Context(), topology.ApplyOptions{Prune: true})
	require.NoError(t, err)
	require.Zero(t, plan.Pending(true))
	left, err := to.Plan(t.Context())
	require.NoError(t, err)
	require.Empty(t, left.Changes)
}
