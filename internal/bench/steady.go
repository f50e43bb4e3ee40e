package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/outbox"
)

const (
	walSQL           = `SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint`
	sizeSQL   pg.SQL = `SELECT pg_table_size('@schema@.outbox'), pg_indexes_size('@schema@.outbox')`
	lookEvery        = time.Second
	// goalDelivery is in milliseconds, from commit to confirm.
	goalDelivery = 100.0
	// flat is how much larger than in the first half tables and indexes may be in the second.
	flat      = 1.2
	smallSize = 1 << 20
	// bounded is the most seconds' worth of rows that may wait.
	bounded = 1.0
)

// load is what a steady run has seen.
type load struct {
	sent, came     atomic.Int64
	mu             sync.Mutex
	at             map[int]time.Time // commits by number, until they arrive
	early          map[int]time.Time // arrivals before their commit has returned
	took           []float64         // milliseconds
	backlog        int64             // the most
	table, indexes [2]int64          // the largest sizes of the first and the second half, in bytes
}

// steady commits rows one by one at a rate and takes their time to a consumer that does nothing. The broker delivers a message to a
// waiting consumer when it confirms it, so this is the time to the confirm, and the way of a delivery.
func (s *stage) steady(ctx context.Context, r *Report) (err error) {
	r.Load.For, r.Load.Rows = s.o.For.String(), 0
	for round := 1; round <= s.o.Rounds; round++ {
		if err := s.steadyOnce(ctx, r, round); err != nil {
			return err
		}
	}
	r.figure("commit to delivery, p50", "ms", r.amounts(P50, "relay"), nil)
	r.figure("commit to delivery, p99", "ms", r.amounts(P99, "relay"), atMost(goalDelivery))
	return nil
}

func (s *stage) steadyOnce(ctx context.Context, r *Report, round int) (err error) {
	schema, err := s.freshSchema(ctx, "steady")
	if err != nil {
		return err
	}
	if err := s.freshQueue(ctx); err != nil {
		return err
	}
	l := &load{at: map[int]time.Time{}, early: map[int]time.Time{}}
	stopConsumer, err := s.receive(ctx, l)
	if err != nil {
		return err
	}
	defer stopConsumer()
	p, err := s.start(ctx, s.command(schema, "relay", "run"))
	if err != nil {
		return err
	}
	defer p.kill()
	if err := s.awaitLeases(ctx, schema, p); err != nil {
		return err
	}
	before := s.meter.read()
	walBefore, err := s.wal(ctx)
	if err != nil {
		return err
	}
	n := int(s.o.For.Seconds() * float64(s.o.Steady))
	began := time.Now()
	if err := s.offerLoad(ctx, l, schema, n); err != nil {
		return err
	}
	offered := time.Since(began)
	if err := s.await(ctx, p, "all rows to arrive", func() (bool, error) { return l.came.Load() >= int64(n), nil }); err != nil {
		return err
	}
	if err := s.awaitEmpty(ctx, schema, p); err != nil {
		return err
	}
	wal, err := s.wal(ctx)
	if err != nil {
		return err
	}
	used := s.meter.read().since(before)
	if err := p.stop(); err != nil {
		return err
	}
	sample := Sample{Round: round, Rows: n, Seconds: offered.Seconds(), Rate: float64(n) / offered.Seconds()}
	sample.spent(p, used, n)
	s.addLoad(r, l, sample, float64(wal-walBefore)/float64(n))
	return nil
}

// addLoad enters what a run has seen.
func (s *stage) addLoad(r *Report, l *load, sample Sample, wal float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p50, p99 := percentile(l.took, 0.5), percentile(l.took, 0.99)
	sample.P50, sample.P99 = &p50, &p99
	s.say("round %d of %d  relay            %s", sample.Round, s.o.Rounds, sample)
	if len(r.Arms) == 0 {
		r.Arms = []Arm{{Name: "relay"}}
	}
	r.Arms[0].Samples = append(r.Arms[0].Samples, sample)
	r.figure("rate / rate offered", "", []float64{sample.Rate / float64(s.o.Steady)}, atLeast(0.98))
	r.figure("most rows waiting, in seconds of load", "s", []float64{float64(l.backlog) / float64(s.o.Steady)}, atMost(bounded))
	r.figure("table size, second half / first", "", []float64{growth(l.table)}, atMost(flat))
	r.figure("index size, second half / first", "", []float64{growth(l.indexes)}, atMost(flat))
	r.figure("table size", "KiB", []float64{float64(l.table[1]) / 1024}, nil)
	r.figure("index size", "KiB", []float64{float64(l.indexes[1]) / 1024}, nil)
	r.figure("WAL per message, insert and settle", "B", []float64{wal}, nil)
}

// growth compares the halves; below smallSize all sizes are alike.
func growth(sizes [2]int64) float64 {
	return float64(max(sizes[1], smallSize)) / float64(max(sizes[0], smallSize))
}

// receive takes what comes, and its time.
func (s *stage) receive(ctx context.Context, l *load) (stop func(), err error) {
	conn, err := rabbit.Dial(ctx, s.broker("bench-receive"))
	if err != nil {
		return nil, err
	}
	ch, err := rawChannel(ctx, conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	deliveries, err := ch.Consume(s.queue(), "", true, false, false, false, nil)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	var received sync.WaitGroup
	received.Go(func() {
		for d := range deliveries {
			l.arrived(&d)
		}
	})
	return func() { _ = conn.Close(); received.Wait() }, nil
}

// arrived notes the first delivery of a message.
func (l *load) arrived(d *amqp.Delivery) {
	now := time.Now()
	n, _ := numberOf(d.MessageId)
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, known := l.at[n]; known {
		l.took = append(l.took, milliseconds(now.Sub(at)))
		delete(l.at, n)
	} else {
		l.early[n] = now
	}
	l.came.Add(1)
}

// committed notes that a commit has returned.
func (l *load) committed(n int, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent.Add(1)
	if _, known := l.early[n]; known {
		l.took = append(l.took, 0)
		delete(l.early, n)
		return
	}
	l.at[n] = at
}

// offerLoad commits n rows at the rate, and looks at backlog and sizes meanwhile.
func (s *stage) offerLoad(ctx context.Context, l *load, schema string, n int) error {
	box, err := outbox.New(outbox.Options{Schema: schema})
	if err != nil {
		return err
	}
	looking, stop := context.WithCancel(ctx)
	looked := make(chan error, 1)
	go func() { looked <- s.look(looking, l, schema, time.Now().Add(s.o.For/2)) }()
	err = s.offer(ctx, n, s.o.Steady, func(ctx context.Context, n int) error {
		err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			_, err := box.Enqueue(ctx, tx, s.event(n))
			return err
		})
		if err == nil {
			l.committed(n, time.Now())
		}
		return err
	})
	stop()
	return errors.Join(err, <-looked)
}

// look notes the largest backlog and sizes until ctx ends.
func (s *stage) look(ctx context.Context, l *load, schema string, middle time.Time) error {
	for pause.For(ctx, lookEvery) {
		var table, indexes int64
		err := s.pool.QueryRow(ctx, sizeSQL.In(schema)).Scan(&table, &indexes)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("look at sizes: %w", err)
		}
		half := 0
		if time.Now().After(middle) {
			half = 1
		}
		l.mu.Lock()
		l.table[half], l.indexes[half] = max(l.table[half], table), max(l.indexes[half], indexes)
		l.backlog = max(l.backlog, l.sent.Load()-l.came.Load())
		l.mu.Unlock()
	}
	return nil
}

func (s *stage) wal(ctx context.Context) (n int64, err error) {
	err = s.pool.QueryRow(ctx, walSQL).Scan(&n)
	return n, err
}
