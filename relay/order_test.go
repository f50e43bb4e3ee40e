package relay_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

// writers commit rows in ways that make simple cursors fail: transactions get their xid early, their keys late,
// and commit later still. Each key's number is drawn from a business row under its lock, so the numbers of a
// key follow its commits.
type writers struct {
	w    *world
	pool *pgxpool.Pool
}

const orderKeys = 20

func newWriters(w *world) *writers {
	w.t.Helper()
	pool, err := pg.Open(context.WithoutCancel(w.t.Context()), pg.Options{URL: w.db.URL, Name: "writers", MaxConns: 16})
	require.NoError(w.t, err)
	w.t.Cleanup(pool.Close)
	_, err = pool.Exec(w.t.Context(), fmt.Sprintf(`CREATE TABLE %s.business AS SELECT k, 0 AS n FROM generate_series(0, %d) k`, w.db.Schema, orderKeys-1))
	require.NoError(w.t, err)
	return &writers{w, pool}
}

func (wr *writers) one(ctx context.Context, random *rand.Rand) error {
	return pgx.BeginFunc(ctx, wr.pool, func(tx pgx.Tx) error {
		if random.IntN(2) == 0 {
			if _, err := tx.Exec(ctx, `SELECT pg_current_xact_id(), pg_sleep($1)`, random.Float64()*0.01); err != nil {
				return err
			}
		}
		key := random.IntN(orderKeys)
		var n int
		err := tx.QueryRow(ctx, fmt.Sprintf(`UPDATE %s.business SET n = n + 1 WHERE k = $1 RETURNING n`, wr.w.db.Schema), key).Scan(&n)
		if err != nil {
			return err
		}
		msgs := []message.Message{msg(fmt.Sprintf("k%d", key), n)}
		if random.IntN(4) == 0 {
			msgs = append(msgs, msg("", random.Int()))
		}
		if _, err := wr.w.box.Enqueue(ctx, tx, msgs...); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `SELECT pg_sleep($1)`, random.Float64()*0.015)
		return err
	})
}

// run has 16 writers commit n transactions in all.
func (wr *writers) run(n int) {
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range n / 16 {
				if err := wr.one(wr.w.t.Context(), random); err != nil {
					wr.w.t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	group.Wait()
}

// cursor is a reader as others have it: it polls with a stored position. It is the control.
func (w *world) cursor(ctx context.Context, sql string) []string {
	var seen []string
	position := int64(0)
	for ctx.Err() == nil {
		rows, err := w.db.Pool.Query(ctx, sql, position)
		if err != nil {
			break
		}
		for rows.Next() {
			var id string
			var row int64
			if rows.Scan(&id, &row) == nil {
				seen = append(seen, id)
				position = row
			}
		}
		rows.Close()
	}
	return seen
}

// TestWrongCursorsFailWhereTheRelayDoesNot has all three read the same kind of traffic.
func TestWrongCursorsFailWhereTheRelayDoesNot(t *testing.T) {
	t.Parallel()
	control := newWorld(t)
	stop, cancel := context.WithCancel(t.Context())
	var byID []string
	var readers sync.WaitGroup
	table := control.db.Schema + ".outbox"
	readers.Go(func() {
		byID = control.cursor(stop, `SELECT message_id, id FROM `+table+` WHERE id > $1 ORDER BY id`)
	})
	newWriters(control).run(640)
	time.AfterFunc(200*time.Millisecond, cancel)
	readers.Wait()
	cancel()
	require.Less(t, len(byID), control.count("outbox"), "control: a plain cursor over ids must overlook rows")
	// Whenever it looks, a cursor over (xid, id) hands rows out in this order, once no older transaction is open.
	rows, err := control.db.Pool.Query(t.Context(), `SELECT message_id FROM `+table+` ORDER BY xid, id`)
	require.NoError(t, err)
	byXid, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.True(t, misordered(byXid), "control: order by transaction id must break the order of keys")

	w := newWorld(t)
	w.topology()
	w.start(w.options())
	newWriters(w).run(3200)
	var n int
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), `SELECT last_value FROM `+w.db.Schema+`.outbox_id_seq`).Scan(&n))
	w.settled(n)
	w.inOrder()
}

func misordered(ids []string) bool {
	last := map[string]int{}
	for _, id := range ids {
		var key, n int
		if _, err := fmt.Sscanf(id, "k%d-%d", &key, &n); err != nil {
			continue
		}
		if n < last[strconv.Itoa(key)] {
			return true
		}
		last[strconv.Itoa(key)] = n
	}
	return false
}

// TestFloodOfLateRows commits an import of more rows than a page after the cursor has passed them, with later
// rows of the same keys and of others right behind.
func TestFloodOfLateRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	o := w.options()
	o.Window = 40
	w.start(o)
	tx, err := w.db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	for n := 1; n <= 40; n++ {
		var flood []message.Message
		for k := range 50 {
			flood = append(flood, msg(fmt.Sprintf("k%d", k), n))
		}
		flood = append(flood, msg("", n))
		_, err := w.box.Enqueue(t.Context(), tx, flood...)
		require.NoError(t, err)
	}
	w.enqueue(msg("other", 1)) // the cursor passes the import
	w.settledBut(1, 0)
	require.NoError(t, tx.Commit(t.Context()))
	for k := range 50 {
		w.enqueue(msg(fmt.Sprintf("k%d", k), 41), msg("other", k+2))
	}
	w.settled(1 + 40*51 + 100)
	w.inOrder()
}

// settledBut waits until n distinct messages have arrived, with rows left visible.
func (w *world) settledBut(n, rows int) {
	w.t.Helper()
	w.wait("messages to arrive and rows to stay", func() bool { return len(w.ids()) == n && w.count("outbox") == rows })
}

// TestLateRowsLargerThanTheWindow does so with few large rows: they are read in pieces, and still in order.
func TestLateRowsLargerThanTheWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	o := w.options()
	o.WindowBytes = 1 << 20
	w.start(o)
	tx, err := w.db.Pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	for n := 1; n <= 100; n++ {
		large := msg("k", n)
		large.Payload = append(large.Payload, bytes.Repeat([]byte(" "), 200_000)...)
		_, err := w.box.Enqueue(t.Context(), tx, large)
		require.NoError(t, err)
	}
	w.enqueue(msg("other", 1)) // the cursor passes them
	w.settledBut(1, 0)
	require.NoError(t, tx.Commit(t.Context()))
	w.enqueue(msg("k", 101), msg("other", 2))
	w.settled(103)
	w.inOrder()
}
