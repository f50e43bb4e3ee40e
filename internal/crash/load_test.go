//go:build crash

package crash_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

// Tables of the harness, in the schema of the test. crash_sent and crash_emitted are what was enqueued, written in the same transaction.
// Where the database went back in time, crash_taken has the messages whose effect that took back, and crash_ghosts those that it unmade
// and that may have been published all the same.
const tablesSQL = `
CREATE TABLE %[1]s.crash_keys   (key text PRIMARY KEY, seq integer NOT NULL DEFAULT 0);
CREATE TABLE %[1]s.crash_sent   (message_id text PRIMARY KEY, key text NOT NULL, seq integer NOT NULL, kind text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE %[1]s.crash_effects (n bigint GENERATED ALWAYS AS IDENTITY, message_id text NOT NULL, type text NOT NULL,
                                  key text NOT NULL, seq integer NOT NULL, cause text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE %[1]s.crash_emitted (message_id text PRIMARY KEY, cause text NOT NULL);
CREATE TABLE %[1]s.crash_taken  (message_id text PRIMARY KEY);
CREATE TABLE %[1]s.crash_ghosts (message_id text PRIMARY KEY);
CREATE INDEX ON %[1]s.crash_effects (message_id);
CREATE TABLE %[1]s.crash_mended (at timestamptz NOT NULL DEFAULT now());
CREATE TABLE %[1]s.crash_orders (id text PRIMARY KEY, status text NOT NULL, since timestamptz NOT NULL);
CREATE INDEX ON %[1]s.crash_orders (status, since);
INSERT INTO %[1]s.crash_keys SELECT 'key-' || n FROM generate_series(1, %[2]d) AS n`

const keys = 40

// errRollback ends a transaction that must leave no trace.
var errRollback = errors.New("rolled back on purpose")

// load writes messages until it is stopped: mostly good ones, some that fail once, some in transactions that
// are rolled back. Poison, lethal and bad rows come on demand.
type load struct {
	pool   *pgxpool.Pool
	schema string
	outbox *outbox.Outbox
	seed   uint64
	pause  time.Duration
	// patient writers go on when the database fails them, as the users' programs do.
	patient bool
	failed  atomic.Int64

	stop context.CancelFunc
	done sync.WaitGroup
	errs chan error
}

func (l *load) begin(ctx context.Context, writers int) {
	ctx, l.stop = context.WithCancel(ctx)
	l.errs = make(chan error, writers)
	for n := range writers {
		l.done.Go(func() {
			random := rand.New(rand.NewPCG(l.seed, uint64(n)))
			for ctx.Err() == nil {
				if err := l.transaction(ctx, random); err != nil && ctx.Err() == nil {
					if l.failed.Add(1); !l.patient {
						l.errs <- err
						return
					}
				}
				select {
				case <-time.After(time.Duration(random.Int64N(int64(2 * l.pause)))):
				case <-ctx.Done():
				}
			}
		})
	}
}

func (l *load) end() error {
	l.stop()
	l.done.Wait()
	select {
	case err := <-l.errs:
		return err
	default:
		return nil
	}
}

func (l *load) transaction(ctx context.Context, random *rand.Rand) error {
	key := fmt.Sprintf("key-%d", 1+random.IntN(keys))
	count, roll := 1+random.IntN(4), random.IntN(10) == 0
	err := pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		for range count {
			kind := "ok"
			if random.IntN(50) == 0 {
				kind = "flaky"
			}
			if err := l.send(ctx, tx, key, kind, !roll); err != nil {
				return err
			}
		}
		if roll {
			return errRollback
		}
		return nil
	})
	if errors.Is(err, errRollback) {
		return nil
	}
	return err
}

// send locks the key's row first, so that seq is the order of commits.
func (l *load) send(ctx context.Context, tx pgx.Tx, key, kind string, record bool) error {
	var seq int
	err := tx.QueryRow(ctx, `INSERT INTO `+l.schema+`.crash_keys AS k (key, seq) VALUES ($1, 1)
		ON CONFLICT (key) DO UPDATE SET seq = k.seq + 1 RETURNING seq`, key).Scan(&seq)
	if err != nil {
		return err
	}
	payload, err := json.Marshal(map[string]any{"key": key, "seq": seq, "kind": kind})
	if err != nil {
		return err
	}
	m := message.Message{ID: message.NewID(), Type: "item." + kind, Key: key, Payload: payload}
	if record {
		if _, err := tx.Exec(ctx, `INSERT INTO `+l.schema+`.crash_sent VALUES ($1, $2, $3, $4)`, m.ID, key, seq, kind); err != nil {
			return err
		}
	}
	_, err = l.outbox.Enqueue(ctx, tx, m)
	return err
}

// one writes a single message of a kind under a key of its own.
func (l *load) one(ctx context.Context, kind string) error {
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		return l.send(ctx, tx, kind+"-"+message.NewID(), kind, true)
	})
}

// bad writes a row that the relay cannot encode (a number beyond 64 bits, which only the SQL function lets
// pass) and a good one behind it under the same key.
func (l *load) bad(ctx context.Context) error {
	key := "bad-" + message.NewID()
	return pgx.BeginFunc(ctx, l.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT `+l.schema+`.enqueue('item.bad', '{}', key => $1, headers => '{"n": 99999999999999999999}')`, key)
		if err != nil {
			return err
		}
		return l.send(ctx, tx, key, "ok", true)
	})
}

// stuck writes an order that the watchdog must cancel.
func (l *load) stuck(ctx context.Context) error {
	_, err := l.pool.Exec(ctx, `INSERT INTO `+l.schema+`.crash_orders VALUES ($1, 'WAITING', now() - interval '1 hour')`, message.NewID())
	return err
}
