package topology_test

import (
	"context"
	"net/url"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/topology"
)

// stage is a vhost and connections to it.
type stage struct {
	testkit.AMQP
	conn *rabbit.Conn
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{AMQP: testkit.Broker(t)}
	s.conn = dial(t, s.URL)
	return s
}

func dial(t *testing.T, u string) *rabbit.Conn {
	t.Helper()
	conn, err := rabbit.Dial(t.Context(), rabbit.Options{URL: u, Role: "test"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	return conn
}

func (s *stage) management(t *testing.T) *rabbit.Management {
	t.Helper()
	m, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: s.URL, URL: s.ManagementURL})
	require.NoError(t, err)
	return m
}

func (s *stage) topology(t *testing.T, queues ...topology.Queue) *topology.Topology {
	t.Helper()
	to, err := topology.New(topology.Options{
		Spec: topology.Spec{Exchange: "shop", Queues: queues}, URL: s.URL, ManagementURL: s.ManagementURL,
	})
	require.NoError(t, err)
	return to
}

// apply makes the topology of the queues.
func (s *stage) apply(t *testing.T, queues ...topology.Queue) {
	t.Helper()
	_, err := s.topology(t, queues...).Apply(t.Context(), topology.ApplyOptions{})
	require.NoError(t, err)
}

// do runs a request on a channel of its own.
func (s *stage) do(t *testing.T, request func(*amqp.Channel) error) {
	t.Helper()
	channel, err := s.conn.Channel(t.Context())
	require.NoError(t, err)
	require.NoError(t, channel.Do(t.Context(), "prepare the test", request))
	require.NoError(t, channel.Close(t.Context()))
}

// declare makes a queue with other arguments than the contract's, in place of one that is there.
func (s *stage) declare(t *testing.T, name string, arguments amqp.Table) {
	t.Helper()
	s.do(t, func(ch *amqp.Channel) error {
		if _, err := ch.QueueDelete(name, false, false, false); err != nil {
			return err
		}
		_, err := ch.QueueDeclare(name, true, false, false, false, arguments)
		return err
	})
}

func (s *stage) bind(t *testing.T, exchange, queue, key string) {
	t.Helper()
	s.do(t, func(ch *amqp.Channel) error { return ch.QueueBind(queue, key, exchange, false, nil) })
}

func (s *stage) policy(t *testing.T, kind, name, pattern string, definition map[string]any) {
	t.Helper()
	s.API(t, "PUT", "/api/"+kind+"/"+s.Vhost+"/"+url.PathEscape(name),
		map[string]any{"pattern": pattern, "definition": definition, "priority": 1, "apply-to": "queues"}, nil)
}

func (s *stage) publish(t *testing.T, exchange, key, id string) {
	t.Helper()
	p, err := s.conn.Publisher(t.Context(), rabbit.PublisherOptions{})
	require.NoError(t, err)
	require.NoError(t, p.PublishConfirmed(t.Context(), exchange, key, amqp.Publishing{MessageId: id, DeliveryMode: amqp.Persistent, Body: []byte(id)}))
	require.NoError(t, p.Close(t.Context()))
}

func (s *stage) consume(t *testing.T, queue string) *rabbit.Subscription {
	t.Helper()
	sub, err := s.conn.Consume(t.Context(), rabbit.ConsumeOptions{Queue: queue})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Close(context.WithoutCancel(t.Context())) })
	return sub
}

func receive(t *testing.T, sub *rabbit.Subscription) amqp.Delivery {
	t.Helper()
	select {
	case d, open := <-sub.Deliveries():
		require.True(t, open, "subscription ended: %v", sub.Err())
		return *d
	case <-time.After(20 * time.Second):
		require.Fail(t, "nothing was delivered")
		return amqp.Delivery{}
	}
}

func (s *stage) ready(t *testing.T, queue string) int {
	t.Helper()
	ready, _, err := s.conn.Inspect(t.Context(), queue)
	require.NoError(t, err)
	return ready
}
