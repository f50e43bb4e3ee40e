package idempotency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	defaultRetention = 24 * time.Hour
	defaultWait      = 5 * time.Second
	defaultMaxBody   = 1 << 20
	defaultMaxAnswer = 64 << 10
)

// Options of a [Store].
type Options struct {
	// Pool of the database that holds the business tables. Required.
	Pool *pgxpool.Pool
	// Schema that `surefoot migrate up` made. Default: "surefoot".
	Schema string
	// Caller names who sent a request: a tenant, an account. It must come from what was authenticated, for whoever is taken for
	// another caller can read that one's answers. 1 to 255 bytes; an error is answered as it is. Required.
	Caller func(r *http.Request) (string, error)
	// Retention is how long a key is remembered. A request that comes again later has its effects again. Default: 24 h.
	Retention time.Duration
	// Wait is how long a request waits for another one with its key. Default: 5 s.
	Wait time.Duration
	// Isolation of the transactions. Default: the database's.
	Isolation pgx.TxIsoLevel
	// MaxBody bounds the body of a request in bytes; it is held in memory. Default: 1 MiB.
	MaxBody int64
	// MaxAnswer bounds the body of an answer in bytes; a larger one is an error of the handler. Default: 64 KiB.
	MaxAnswer int
	// Logger gets what is left unknown, and failures of the clean-up. Default: none.
	Logger zerolog.Logger
	// Metrics are registered here. Default: not at all.
	Metrics prometheus.Registerer
}

func (o Options) withDefaults() Options {
	o.Schema = pg.Schema(o.Schema)
	o.Retention = cmp.Or(o.Retention, defaultRetention)
	o.Wait = cmp.Or(o.Wait, defaultWait)
	o.MaxBody = cmp.Or(o.MaxBody, defaultMaxBody)
	o.MaxAnswer = cmp.Or(o.MaxAnswer, defaultMaxAnswer)
	return o
}

// validate reports every fault at once.
func (o Options) validate() error {
	faults := []error{pg.CheckSchema(o.Schema)}
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(o.Pool != nil, "Pool is required")
	check(o.Caller != nil, "Caller is required")
	check(o.Retention >= time.Minute, "Retention is %s; use 1 minute or more", o.Retention)
	check(o.Wait >= time.Millisecond, "Wait is %s; use 1 ms or more", o.Wait)
	check(o.MaxBody > 0, "MaxBody is %d; use 1 byte or more", o.MaxBody)
	check(o.MaxAnswer > 0, "MaxAnswer is %d; use 1 byte or more", o.MaxAnswer)
	return errors.Join(faults...)
}

// Store remembers requests and their answers. It is safe for concurrent use. [Store.Run] must run somewhere, or the table
// grows.
type Store struct {
	options Options
	sql     statements
	metrics *metrics

	mu      sync.Mutex
	flights map[uuid.UUID]*flight
}

// New returns a store, or an error that names every option that is wrong. It does no I/O.
func New(o Options) (*Store, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("idempotency: %w", err)
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, fmt.Errorf("idempotency: %w", err)
	}
	return &Store{options: o, sql: newStatements(o), metrics: m, flights: map[uuid.UUID]*flight{}}, nil
}

// Resolve gives the final answer to a request that was left pending, in the caller's transaction: that of a reconciliation,
// with the change that it makes. It reports false, and changes nothing, when the request is not pending.
func (s *Store) Resolve(ctx context.Context, tx pgx.Tx, k Key, a Answer) (bool, error) {
	row, err := s.encode(a)
	if err != nil {
		return false, fmt.Errorf("resolve request: %w", err)
	}
	tag, err := tx.Exec(ctx, s.sql.resolve, k.id(), row.pending, row.status, row.headers, row.body, s.options.Retention)
	if err != nil {
		return false, fmt.Errorf("resolve request: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// Erase forgets everything that a caller has sent, in the given transaction, and returns how many requests those were. One that is
// pending goes too, and is then a new request when it comes again: erase nobody of whom something is still under way. It reads the
// whole table.
func (s *Store) Erase(ctx context.Context, tx pgx.Tx, caller string) (int64, error) {
	tag, err := tx.Exec(ctx, s.sql.erase, caller)
	if err != nil {
		return 0, fmt.Errorf("erase requests of a caller: %w", explain(err, s.options.Schema))
	}
	return tag.RowsAffected(), nil
}
