package relay

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	// settleEvery is how long confirmed rows gather before they are settled, and settleMost how many at most.
	settleEvery = 25 * time.Millisecond
	settleMost  = 2000
	// settleTimeout bounds one statement.
	settleTimeout = 20 * time.Second
)

// errFenced says that the shard's lease has another owner or epoch, or was taken on another server.
var errFenced = errors.New("the lease has another owner now, or the database another server")

// settleSQL deletes confirmed rows, each by the place it is found at, and returns the shards whose epoch still
// held. Nearly always that is where it was read (2 to 3 us a row instead of 6 to 7 by way of the index); an UPDATE by hand or a rewrite of
// the table moves it. The look-up finds the row or, when it is gone, the next one: only what is exactly the row asked for may
// be deleted. DELETE by (shard, id) instead lost its plan whenever the statistics said that the table was empty
// (5 us a row became 94); a join by ctid has the same choice of plans.
const settleSQL pg.SQL = `
WITH held AS MATERIALIZED (
    SELECT l.shard FROM unnest($1::smallint[], $2::bigint[]) AS h(shard, epoch)
    JOIN @schema@.outbox_leases l ON l.shard = h.shard AND l.epoch = h.epoch AND l.server = pg_postmaster_start_time()
), gone AS (
    DELETE FROM @schema@.outbox WHERE ctid = ANY (ARRAY(
        SELECT coalesce(h.ctid, f.ctid) FROM unnest($3::smallint[], $4::bigint[], $5::tid[]) AS w(shard, id, at) LEFT JOIN LATERAL (
            SELECT x.ctid FROM @schema@.outbox x WHERE x.ctid = w.at AND x.shard = w.shard AND x.id = w.id OFFSET 0) h ON true LEFT JOIN LATERAL (
            SELECT x.ctid, x.shard, x.id FROM @schema@.outbox x
            WHERE h.ctid IS NULL AND (x.shard, x.id) >= (w.shard, w.id) ORDER BY x.shard, x.id LIMIT 1) f ON true
        WHERE (h.ctid IS NOT NULL OR f.shard = w.shard AND f.id = w.id) AND w.shard IN (SELECT shard FROM held)))
)
SELECT shard FROM held`

// settlement is a batch of confirmed rows of one shard.
type settlement struct {
	shard int16
	epoch int64
	rows  []*row
	reply chan<- settled
}

// settled is its outcome: nil, errFenced, or an error after which nobody knows whether the rows are gone;
// settling them again does no harm.
type settled struct {
	rows []*row
	err  error
}

// settler joins the settlements of all shards into one statement at a time.
type settler struct {
	pool  *pgxpool.Pool
	sql   string
	batch chan settlement
}

func newSettler(o Options) *settler {
	return &settler{pool: o.Pool, sql: settleSQL.In(o.Schema), batch: make(chan settlement, 64)}
}

func (s *settler) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case first := <-s.batch:
			s.settle(ctx, s.gather(first))
		}
	}
}

func (s *settler) gather(first settlement) []settlement {
	batch := []settlement{first}
	for {
		select {
		case next := <-s.batch:
			batch = append(batch, next)
		default:
			return batch
		}
	}
}

func (s *settler) settle(ctx context.Context, batch []settlement) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	held, err := s.delete(ctx, batch)
	for _, b := range batch {
		outcome := settled{rows: b.rows, err: err}
		if err == nil && !held[b.shard] {
			outcome.err = errFenced
		}
		b.reply <- outcome
	}
}

// delete returns the shards that are still held.
func (s *settler) delete(ctx context.Context, batch []settlement) (map[int16]bool, error) {
	var owned, shards []int16
	var epochs, ids []int64
	var places pgtype.FlatArray[pgtype.TID]
	for _, b := range batch {
		owned, epochs = append(owned, b.shard), append(epochs, b.epoch)
		for _, r := range b.rows {
			shards, ids, places = append(shards, r.shard), append(ids, r.id), append(places, r.at())
		}
	}
	if err := fault.Point("relay.after-confirm"); err != nil {
		return nil, err
	}
	held := make(map[int16]bool, len(owned))
	var shard int16
	err := planned(ctx, s.pool, s.sql, func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&shard}, func() error { held[shard] = true; return nil })
		return err
	}, owned, epochs, shards, ids, places)
	if err != nil {
		return nil, fmt.Errorf("settle: %w", err)
	}
	return held, fault.Point("relay.after-settle")
}
