package drill

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/relay"
	"github.com/surefoot-mq/surefoot/topology"
)

// exchange of every drill, in a vhost of its own.
const exchange = "drill.events"

// work is a queue for events of the type drill.#, with the retry delays given.
func work(name string, attempts int, delays ...time.Duration) topology.Queue {
	return topology.Queue{Name: name, Bindings: []string{"drill.#"}, Retry: delays, MaxAttempts: attempts, Owner: "drill"}
}

// prepare makes database, vhost and queues.
func (s *stage) prepare(ctx context.Context, queues ...topology.Queue) error {
	if _, err := s.database(ctx); err != nil {
		return err
	}
	return s.topology(ctx, topology.Spec{Exchange: exchange, Queues: queues})
}

// part is a component that runs until the arm ends, with metrics of its own.
type part struct {
	metrics *prometheus.Registry
	stop    func() error // ends it earlier, in order
}

// value sums a metric over all label values that are given as name, value pairs.
func (p part) value(name string, labels ...string) float64 {
	families, err := p.metrics.Gather()
	if err != nil {
		return math.NaN()
	}
	var sum float64
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			have := map[string]string{}
			for _, l := range m.GetLabel() {
				have[l.GetName()] = l.GetValue()
			}
			fits := true
			for i := 0; i < len(labels); i += 2 {
				fits = fits && have[labels[i]] == labels[i+1]
			}
			if fits {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// relay publishes the arm's outbox in this process.
func (s *stage) relay(ctx context.Context, name string, change func(*relay.Options)) (part, error) {
	pool, err := s.openPool(ctx, s.o.DatabaseURL, 10)
	if err != nil {
		return part{}, err
	}
	broker, err := s.broker(ctx)
	if err != nil {
		return part{}, err
	}
	p := part{metrics: prometheus.NewRegistry()}
	o := relay.Options{
		Pool: pool, Schema: s.schema, AMQPURL: broker, TLS: s.o.TLS, Exchange: exchange, Name: name, Version: s.o.Version, PollMax: 20 * time.Millisecond,
		Lease: 2 * time.Second, Drain: 2 * time.Second, Logger: s.logger.With().Str("part", name).Logger(), Registerer: p.metrics,
	}
	if change != nil {
		change(&o)
	}
	r, err := relay.New(o)
	if err != nil {
		return part{}, err
	}
	p.stop = s.background(ctx, r.Run)
	return p, nil
}

// consume works on a queue in this process.
func (s *stage) consume(ctx context.Context, q topology.Queue, handler consumer.Handler, change func(*consumer.Options)) (part, error) {
	broker, err := s.broker(ctx)
	if err != nil {
		return part{}, err
	}
	p := part{metrics: prometheus.NewRegistry()}
	o := consumer.FromSpec(topology.Spec{Exchange: exchange, Queues: []topology.Queue{q}}.WithDefaults().Queues[0])
	o.Handler, o.Pool, o.Schema, o.URL, o.TLS = handler, s.pool, s.schema, broker, s.o.TLS
	o.Concurrency, o.Drain = min(8, max(o.Prefetch, 1)), 2*time.Second
	o.Host, o.Version, o.Logger, o.Metrics = s.o.Host, s.o.Version, s.logger, p.metrics
	if change != nil {
		change(&o)
	}
	c, err := consumer.New(o)
	if err != nil {
		return part{}, err
	}
	p.stop = s.background(ctx, c.Run)
	return p, nil
}

// newEvent is a message of the arm.
func newEvent(eventType, key string, payload any) message.Message {
	text, err := json.Marshal(payload)
	if err != nil {
		panic(err) // of plain values
	}
	return message.Message{ID: message.NewID(), Type: eventType, Key: key, Exchange: exchange, Source: "drill", Payload: text}
}

// enqueue commits messages in one transaction.
func (s *stage) enqueue(ctx context.Context, msgs ...message.Message) error {
	box, err := outbox.New(outbox.Options{Schema: s.schema})
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := box.Enqueue(ctx, tx, msgs...)
		return err
	})
}

const waiting pg.SQL = `SELECT (SELECT count(*) FROM @schema@.outbox) + (SELECT count(*) FROM @schema@.outbox_parked)`

// ready counts the messages of queues that no consumer holds.
func ready(ctx context.Context, conn *rabbit.Conn, queues ...string) (n int, err error) {
	for _, queue := range queues {
		one, _, err := conn.Inspect(ctx, queue)
		if err != nil {
			return 0, err
		}
		n += one
	}
	return n, nil
}

// publishInto publishes n messages straight into a queue, confirmed.
func publishInto(ctx context.Context, conn *rabbit.Conn, queue string, n int, body []byte) error {
	publisher, err := conn.Publisher(ctx, rabbit.PublisherOptions{})
	if err != nil {
		return err
	}
	return errors.Join(together(8, func(lane int) error {
		for i := lane; i < n; i += 8 {
			letter := amqp.Publishing{MessageId: message.NewID(), Type: "drill.job", DeliveryMode: 2, ContentType: "application/json", Body: body}
			if err := publisher.PublishConfirmed(ctx, "", queue, letter); err != nil {
				return err
			}
		}
		return nil
	}), publisher.Close(ctx))
}
