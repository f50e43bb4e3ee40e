package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

const (
	producers  = 16          // at a time, so that a slow commit delays no other
	warmUp     = 50          // messages of a round that are sent before the ones that count
	readyLimit = time.Minute // for consumer and relay to be there
	readyPoll  = 20 * time.Millisecond
)

// path is one way from a producer to a handler.
type path struct {
	name string
	mode consumeMode
	// open starts what lies between; send hands message n over and returns when it counts as sent.
	open func(ctx context.Context, schema string) (send func(ctx context.Context, n int) (time.Time, error), stop func() error, err error)
}

func (b *Bench) latency(ctx context.Context, s *stage, r *Report) error {
	if b.o.Steady == 0 {
		return errors.New("the rate must be 1 or more")
	}
	r.Load = Load{Bytes: b.o.Bytes, Rounds: b.o.Rounds, Rate: b.o.Steady, For: b.o.For.String()}
	var turns []turn
	for _, p := range []path{
		{"bare publish", modeBare, s.openBare},
		{"commit and relay", modeInbox, s.openRelay},
	} {
		turns = append(turns, turn{p.name, func(ctx context.Context, round int) (Sample, error) { return s.timeOnce(ctx, p, round) }})
	}
	if err := s.take(ctx, r, turns, nil); err != nil {
		return err
	}
	r.figure("commit to handler / bare publish to handler, p50", "", r.ratios(P50, "commit and relay", "bare publish"), atMost(3))
	r.figure("commit to handler / bare publish to handler, p99", "", r.ratios(P99, "commit and relay", "bare publish"), atMost(5))
	r.figure("commit to handler, p50", "ms", r.amounts(P50, "commit and relay"), nil)
	r.figure("commit to handler, p99", "ms", r.amounts(P99, "commit and relay"), nil)
	return nil
}

// timeOnce sends at the rate for a round and takes the time of each message to its handler.
func (s *stage) timeOnce(ctx context.Context, way path, round int) (Sample, error) {
	sample := Sample{Round: round}
	schema, err := s.freshSchema(ctx, "latency")
	if err != nil {
		return sample, err
	}
	if _, err := s.pool.Exec(ctx, effectsSQL.In(schema)); err != nil {
		return sample, err
	}
	if err := s.freshWork(ctx); err != nil {
		return sample, err
	}
	n := warmUp + int(s.o.For.Seconds()*float64(s.o.Steady))
	handler, err := s.start(ctx, s.arm(schema, armConsume, consumeTask{
		Mode: way.mode, Queue: s.work(), Rows: n, Prefetch: s.o.Prefetch, Workers: s.o.Workers, Times: true,
	}))
	if err != nil {
		return sample, err
	}
	defer handler.kill()
	if err := s.awaitConsumer(ctx, handler); err != nil {
		return sample, err
	}
	sent, err := s.sendAll(ctx, way, schema, n)
	if err != nil {
		return sample, err
	}
	done, err := result(ctx, handler)
	if err != nil {
		return sample, err
	}
	return sample, judge(&sample, sent, done, n)
}

func (s *stage) awaitConsumer(ctx context.Context, handler *process) error {
	return s.await(ctx, handler, "the consumer to come up", func() (bool, error) {
		_, consumers, err := s.conn.Inspect(ctx, s.work().Name)
		return consumers > 0, err
	})
}

// sendAll sends n messages at random distances, the same in every round: with even ones a poll could fall into step.
func (s *stage) sendAll(ctx context.Context, way path, schema string, n int) (_ map[int]time.Time, err error) {
	send, stop, err := way.open(ctx, schema)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	sent := make(map[int]time.Time, n)
	var mu sync.Mutex
	err = s.offer(ctx, n, s.o.Steady, func(ctx context.Context, n int) error {
		at, err := send(ctx, n)
		mu.Lock()
		defer mu.Unlock()
		sent[n] = at
		return err
	})
	return sent, err
}

// offer calls send for 1 to n at the given mean rate, some at a time.
func (s *stage) offer(ctx context.Context, n, rate int, send func(ctx context.Context, n int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	due := make(chan int, rate) // a second's worth may wait for a producer
	var group sync.WaitGroup
	for range producers {
		group.Go(func() {
			for n := range due {
				if err := send(ctx, n); err != nil {
					cancel(err)
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(3, 4))
	next := time.Now()
	for number := 1; number <= n && ctx.Err() == nil; number++ {
		next = next.Add(time.Duration(random.ExpFloat64() / float64(rate) * float64(time.Second)))
		if !pause.For(ctx, time.Until(next)) {
			break
		}
		due <- number
	}
	close(due)
	group.Wait()
	return context.Cause(ctx)
}

// judge sets the percentiles. Every message must have been handled.
func judge(sample *Sample, sent map[int]time.Time, done outcome, n int) error {
	var took []float64
	for number, at := range done.At {
		if began, ok := sent[number]; ok && number > warmUp {
			took = append(took, max(0, milliseconds(time.Unix(0, at).Sub(began))))
		}
	}
	if len(done.At) != n || len(took) != n-warmUp {
		return fmt.Errorf("%d of %d messages were handled", len(done.At), n)
	}
	sample.Rows = len(took)
	p50, p99 := percentile(took, 0.5), percentile(took, 0.99)
	sample.P50, sample.P99 = &p50, &p99
	return nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// percentile sorts values, which must not be empty.
func percentile(values []float64, share float64) float64 {
	slices.Sort(values)
	return values[min(int(float64(len(values))*share), len(values)-1)]
}

// openBare publishes with the client library; a message counts as sent just before it is published.
func (s *stage) openBare(ctx context.Context, _ string) (func(context.Context, int) (time.Time, error), func() error, error) {
	l, err := openLane(ctx, s.broker("bench-publish"))
	if err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	send := func(ctx context.Context, n int) (time.Time, error) {
		msg, err := s.event(n).Publishing()
		if err != nil {
			return time.Time{}, err
		}
		mu.Lock()
		defer mu.Unlock()
		now := time.Now()
		return now, l.send(ctx, "", s.work().Name, msg)
	}
	return send, func() error { defer l.close(); return l.flush(context.WithoutCancel(ctx)) }, nil
}

// openRelay commits rows one by one beside a relay; a message counts as sent when its commit has returned.
func (s *stage) openRelay(ctx context.Context, schema string) (func(context.Context, int) (time.Time, error), func() error, error) {
	box, err := outbox.New(outbox.Options{Schema: schema})
	if err != nil {
		return nil, nil, err
	}
	if err := s.bindWork(ctx); err != nil {
		return nil, nil, err
	}
	relay := s.command(schema, "relay", "run")
	relay.env = append(relay.env, "SUREFOOT_RELAY_LISTEN_URL="+s.o.DatabaseURL) // the doorbell, as one would have it for latency
	p, err := s.start(ctx, relay)
	if err != nil {
		return nil, nil, err
	}
	send := func(ctx context.Context, n int) (time.Time, error) {
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			_, err := box.Enqueue(ctx, tx, s.event(n))
			return err
		})
		return time.Now(), err
	}
	stop := func() error {
		err := s.awaitEmpty(ctx, schema, p)
		if err != nil {
			p.kill()
			return err
		}
		return p.stop()
	}
	if err := s.awaitLeases(ctx, schema, p); err != nil {
		p.kill()
		return nil, nil, err
	}
	return send, stop, nil
}

// event is message n as an application would enqueue it.
func (s *stage) event(n int) message.Message {
	return message.Message{ID: fmt.Sprintf("00000000-0000-7000-8000-%012d", n), Type: routingKey, Key: fmt.Sprint("k", n%s.o.Keys), Payload: s.body}
}

func (s *stage) bindWork(ctx context.Context) error {
	return s.channel.Do(ctx, "bind the work queue", func(ch *amqp.Channel) error {
		return ch.QueueBind(s.work().Name, "order.#", s.exchange(), false, nil)
	})
}

const leasedSQL pg.SQL = `SELECT count(*) = (SELECT @schema@.outbox_shards()) FROM @schema@.outbox_leases WHERE expires_at > now()`

// awaitLeases waits for the relay to own all shards.
func (s *stage) awaitLeases(ctx context.Context, schema string, p *process) error {
	return s.await(ctx, p, "the relay to take its shards", func() (done bool, err error) {
		err = s.pool.QueryRow(ctx, leasedSQL.In(schema)).Scan(&done)
		return done, err
	})
}

// awaitEmpty waits for the outbox to be empty.
func (s *stage) awaitEmpty(ctx context.Context, schema string, p *process) error {
	return s.await(ctx, p, "the outbox to be empty", func() (bool, error) { return s.empty(ctx, schema) })
}

// await asks again and again, while a process lives.
func (s *stage) await(ctx context.Context, p *process, what string, done func() (bool, error)) error {
	for deadline := time.Now().Add(readyLimit); time.Now().Before(deadline); {
		if yes, err := done(); yes || err != nil {
			return err
		}
		if over(p.ended) {
			return endedEarly(p)
		}
		if !pause.For(ctx, readyPoll) {
			return ctx.Err()
		}
	}
	return fmt.Errorf("waited %s for %s", readyLimit, what)
}
