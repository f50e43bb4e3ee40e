package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	fillSQL pg.SQL = `
INSERT INTO @schema@.outbox (occurred_at, hash, shard, message_id, type, key, exchange, routing_key, content_type, source, correlation_id,
    causation_id, request_id, traceparent, tracestate, payload)
SELECT now(), h, (h & 9223372036854775807) % @schema@.outbox_shards(), 'm' || g, 'order.created', k, '', '', 'application/json', '', '', '', '', '', '',
    convert_to($4, 'UTF8')
FROM generate_series($1::bigint + 1, $1::bigint + $2::bigint) g, LATERAL (SELECT 'k' || g % $3::bigint AS k) k, LATERAL (SELECT @schema@.outbox_hash(k) AS h) h`
	vacuumSQL pg.SQL = `VACUUM (ANALYZE) @schema@.outbox`
	anyLeft   pg.SQL = `SELECT EXISTS (SELECT FROM @schema@.outbox)`
	countLeft pg.SQL = `SELECT (SELECT count(*) FROM @schema@.outbox) + (SELECT count(*) FROM @schema@.outbox_parked)`
)

// routingKey is that of every row, and its type.
const routingKey = "order.created"

// fillPage bounds one transaction of a fill, and with it what an interrupt throws away.
const fillPage = 500_000

// system is a design that drains an outbox into the broker.
type system struct {
	name string
	// prepare makes its tables anew.
	prepare func(ctx context.Context, schema string) error
	// fill adds rows, whose numbers follow on those of the fills before when the system is numbered, and otherwise begin at 1.
	fill     func(ctx context.Context, schema string, before, rows int) error
	numbered bool
	// program drains; its process ends by itself at the end of the window or of the rows, unless there is settled.
	program func(schema string, rows int) program
	settled func(ctx context.Context, schema string) (bool, error)
	// left counts the rows not settled; nil: unknown.
	left func(ctx context.Context, schema string) (int, error)
}

// ours is the real relay.
func (s *stage) ours() system {
	return system{
		name: "relay", numbered: true,
		prepare: func(ctx context.Context, schema string) error {
			_, err := pg.Migrate(ctx, pg.MigrateOptions{URL: s.o.DatabaseURL, Schema: schema})
			return err
		},
		fill: s.fillOutbox,
		program: func(schema string, _ int) program {
			return s.command(schema, "relay", "run")
		},
		settled: s.empty,
		left: func(ctx context.Context, schema string) (n int, err error) {
			err = s.pool.QueryRow(ctx, countLeft.In(schema)).Scan(&n)
			return n, err
		},
	}
}

// empty says whether no row waits in the outbox.
func (s *stage) empty(ctx context.Context, schema string) (bool, error) {
	var left bool
	err := s.pool.QueryRow(ctx, anyLeft.In(schema)).Scan(&left)
	return !left, err
}

// fillOutbox writes rows as Enqueue would, and leaves the table as autovacuum would a minute later.
func (s *stage) fillOutbox(ctx context.Context, schema string, before, rows int) error {
	for done := 0; done < rows; {
		n := min(rows-done, fillPage)
		if _, err := s.pool.Exec(ctx, fillSQL.In(schema), before+done, n, s.o.Keys, string(s.body)); err != nil {
			return fmt.Errorf("fill the outbox: %w", err)
		}
		done += n
	}
	_, err := s.pool.Exec(ctx, vacuumSQL.In(schema))
	return err
}

// payload is text that nothing on its way makes longer or shorter, the same in every run.
func payload(size int) []byte {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	random := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, size)
	for i := range text {
		text[i] = letters[random.IntN(len(letters))]
	}
	return text
}

// bare publishes from memory.
func (s *stage) bare() system {
	return system{
		name:    "bare publisher",
		prepare: func(context.Context, string) error { return nil },
		fill:    func(context.Context, string, int, int) error { return nil },
		program: func(schema string, rows int) program {
			return s.arm(schema, armPublish, publishTask{
				Exchange: s.exchange(), Rows: rows, Bytes: s.o.Bytes, Keys: s.o.Keys, Connections: s.o.Connections, For: s.o.Window,
			})
		},
	}
}

// peer is one of scripts/peers, whose README.md has the protocol.
func (s *stage) peer(name string) system {
	call := func(schema string, args ...string) program {
		return program{name: "peers " + name + " " + args[0], path: s.o.Peers, args: append([]string{name}, args...), env: s.environ(schema)}
	}
	return system{
		name:    name,
		prepare: func(ctx context.Context, schema string) error { return s.run(ctx, call(schema, "prepare")) },
		fill: func(ctx context.Context, schema string, _, rows int) error {
			return s.run(ctx, call(schema, "fill", "-rows", strconv.Itoa(rows), "-bytes", strconv.Itoa(s.o.Bytes), "-keys", strconv.Itoa(s.o.Keys)))
		},
		program: func(schema string, _ int) program {
			return call(schema, "drain", "-for", s.o.Window.String(), "-connections", strconv.Itoa(s.o.Connections))
		},
	}
}

// ordered is the textbook relay as who needs the order of keys runs it: one worker, for several take each other's rows.
func (s *stage) ordered() system {
	one := *s
	one.o.Connections = 1
	sys := one.peer("textbook")
	sys.name = orderedTextbook
	return sys
}

const orderedTextbook = "textbook in order"

// systems are all that take turns.
func (s *stage) systems() []system {
	all := []system{s.bare(), s.ours()}
	if s.o.Peers != "" {
		all = append(all, s.peer("textbook"), s.peer("river"), s.peer("watermill"))
	}
	return all
}

// tables are those of one system, with what was put in.
type tables struct {
	system
	schema string
	filled int // since they were made
	there  int // waiting now
	book   *book
}

// newTables makes a system's tables anew, in the schema of that name.
func (s *stage) newTables(ctx context.Context, sys system, schema string) (*tables, error) {
	t := &tables{system: sys, schema: s.schema(schema), book: newBook()}
	if err := s.dropSchema(ctx, t.schema); err != nil {
		return nil, err
	}
	if err := sys.prepare(ctx, t.schema); err != nil {
		return nil, fmt.Errorf("prepare %s: %w", sys.name, err)
	}
	return t, nil
}

// top fills up to rows.
func (t *tables) top(ctx context.Context, rows int) error {
	n := rows - t.there
	if n <= 0 {
		return nil
	}
	if err := t.fill(ctx, t.schema, t.filled, n); err != nil {
		return fmt.Errorf("fill %s: %w", t.name, err)
	}
	if !t.numbered {
		t.book = newBook()
	}
	t.filled, t.there = t.filled+n, rows
	return nil
}

// drain runs the system on its tables for a window, or until nothing is left, into a fresh queue, and reads back what came.
func (s *stage) drain(ctx context.Context, t *tables, round int) (Sample, error) {
	sample := Sample{Round: round}
	if err := s.freshQueue(ctx); err != nil {
		return sample, err
	}
	before := s.meter.read()
	p, err := s.start(ctx, t.program(t.schema, t.there))
	if err != nil {
		return sample, err
	}
	defer p.kill()
	w := work{queue: s.queue(), rows: t.there, window: s.o.Window}
	if t.settled != nil {
		w.settled = func(ctx context.Context) (bool, error) { return t.settled(ctx, t.schema) }
	}
	seen, err := s.observe(ctx, p, w, before)
	if err != nil {
		return sample, err
	}
	if err := finish(ctx, p, t.settled != nil); err != nil {
		return sample, err
	}
	moved, err := s.depth(ctx, s.queue())
	if err != nil {
		return sample, err
	}
	sample.Rows, sample.Seconds, sample.Rate = seen.rows(), seen.seconds(), seen.rate()
	sample.CPU, sample.Memory = perRow(p.cpu(), moved), p.memory()
	sample.Postgres, sample.Broker = perRow(seen.used.postgres, seen.last), perRow(seen.used.broker, seen.last)
	return sample, s.account(ctx, t, seen, moved, &sample)
}

// finish ends a process that has done its work.
func finish(ctx context.Context, p *process, stopped bool) error {
	if stopped {
		return p.stop()
	}
	_, err := p.wait(ctx)
	return err
}

// account reads back what came and compares it with what was there and what is left.
func (s *stage) account(ctx context.Context, t *tables, seen observation, moved int, sample *Sample) error {
	known := *t.book
	if err := s.readBack(ctx, s.queue(), moved, t.book); err != nil {
		return err
	}
	came := t.book.distinct - known.distinct
	sample.Repeated, sample.Disordered = t.book.repeated-known.repeated, t.book.disordered-known.disordered
	t.there -= came
	if t.left == nil {
		if seen.ended.Sub(seen.began) < s.o.Window-time.Second && t.there > 0 {
			return fmt.Errorf("%s ended and %d of its rows never came", t.name, t.there)
		}
		return nil
	}
	left, err := t.left(ctx, t.schema)
	switch {
	case err != nil:
		return err
	case left != t.there:
		return fmt.Errorf("%s: %d rows are left where %d should be: messages were lost or rows not settled", t.name, left, t.there)
	case sample.Repeated > 0 || sample.Disordered > 0:
		return fmt.Errorf("%s: %d messages came twice and %d after a later one of their key", t.name, sample.Repeated, sample.Disordered)
	}
	return nil
}
