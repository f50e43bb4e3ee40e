package outbox_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

func event(id, key string) message.Message { return message.Message{ID: id, Type: "a", Key: key} }

func TestOnceLeavesOutWhatWasEnqueued(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	once := newOutbox(t, db, outbox.Options{Once: true})
	enqueue := func(want int, ids ...string) {
		t.Helper()
		tx := begin(t, db)
		var msgs []message.Message
		for _, id := range ids {
			msgs = append(msgs, event(id, "k"))
		}
		n, err := once.Enqueue(t.Context(), tx, msgs...)
		require.NoError(t, err)
		require.Equal(t, want, n)
		commit(t, tx)
	}
	enqueue(3, "b", "a", "b", "c", "a")
	require.Equal(t, []string{"b", "a", "c"}, ids(stored(t, db)), "the first of each, in order")
	enqueue(0, "a", "b")
	enqueue(1, "a", "d", "d")
	require.Equal(t, []string{"b", "a", "c", "d"}, ids(stored(t, db)))
	// Once remembers beyond the row: also after it was published.
	_, err := db.Pool.Exec(t.Context(), `DELETE FROM `+db.Schema+`.outbox`)
	require.NoError(t, err)
	enqueue(0, "a")
	id, err := call(t, db, `enqueue('t', '', message_id => 'a', once => true)`)
	require.NoError(t, err)
	require.Empty(t, id, "NULL says that it was there")
	id, err = call(t, db, `enqueue('t', '', message_id => 'e', once => true)`)
	require.NoError(t, err)
	require.Equal(t, "e", id)
	// Without Once a second row is written: the inbox makes it one effect.
	_, err = call(t, db, `enqueue('t', '', message_id => 'e')`)
	require.NoError(t, err)
	require.Equal(t, []string{"e", "e"}, ids(stored(t, db)))
}

func TestOnceForgetsWithARollback(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	once := newOutbox(t, db, outbox.Options{Once: true})
	tx := begin(t, db)
	n, err := once.Enqueue(t.Context(), tx, event("a", ""))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.NoError(t, tx.Rollback(t.Context()))
	tx = begin(t, db)
	n, err = once.Enqueue(t.Context(), tx, event("a", ""))
	require.NoError(t, err)
	require.Equal(t, 1, n)
	commit(t, tx)
	require.Len(t, stored(t, db), 1)
}

// The second waits until the first has ended, and then knows.
func TestOnceAcrossConcurrentTransactions(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		first  func(pgx.Tx, context.Context) error
		second int
	}{
		"first commits":    {pgx.Tx.Commit, 0},
		"first rolls back": {pgx.Tx.Rollback, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Database(t)
			once := newOutbox(t, db, outbox.Options{Once: true})
			first, second := begin(t, db), begin(t, db)
			n, err := once.Enqueue(t.Context(), first, event("a", ""), event("b", ""))
			require.NoError(t, err)
			require.Equal(t, 2, n)
			var g errgroup.Group
			g.Go(func() error {
				n, err = once.Enqueue(t.Context(), second, event("b", ""))
				return err
			})
			waitForWaiter(t, db)
			require.NoError(t, end.first(first, t.Context()))
			require.NoError(t, g.Wait())
			require.Equal(t, end.second, n)
			commit(t, second)
			require.Len(t, stored(t, db), 2-end.second)
		})
	}
}

// waitForWaiter waits until the transaction's session waits for a lock.
func waitForWaiter(t testing.TB, db testkit.DB) {
	t.Helper()
	testkit.Eventually(t, patience, "a transaction that waits for a lock", func() bool {
		var waits bool
		// By the pool's name: behind a pooler the client does not know its process.
		err := db.Pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE application_name = current_setting('application_name') AND wait_event_type = 'Lock')`).Scan(&waits)
		require.NoError(t, err)
		return waits
	})
}

// G2: with the key lock, ids of one key follow commits. The first writer holds the key until it commits; the
// second draws its id only then.
func TestLockKeysSerialisesWritersOfOneKey(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	box := newOutbox(t, db, outbox.Options{LockKeys: true})
	first, second, other := begin(t, db), begin(t, db), begin(t, db)
	_, err := box.Enqueue(t.Context(), first, event("first", "k"))
	require.NoError(t, err)
	var g errgroup.Group
	g.Go(func() error {
		_, err := box.Enqueue(t.Context(), second, event("second", "x"), event("second", "k"))
		return err
	})
	waitForWaiter(t, db)
	_, err = box.Enqueue(t.Context(), other, event("other", "another key"), event("none", ""))
	require.NoError(t, err, "other keys do not wait")
	commit(t, other)
	_, err = box.Enqueue(t.Context(), first, event("first again", "k"))
	require.NoError(t, err)
	commit(t, first)
	require.NoError(t, g.Wait())
	commit(t, second)
	require.Equal(t, []string{"first", "other", "none", "first again", "second", "second"}, ids(stored(t, db)))
}

func TestScalarLockKeyIsTheSameLock(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	box := newOutbox(t, db, outbox.Options{LockKeys: true})
	first, second := begin(t, db), begin(t, db)
	_, err := first.Exec(t.Context(), `SELECT `+db.Schema+`.enqueue('a', '', key => 'k', message_id => 'first', lock_key => true)`)
	require.NoError(t, err)
	var g errgroup.Group
	g.Go(func() error {
		_, err := box.Enqueue(t.Context(), second, event("second", "k"))
		return err
	})
	waitForWaiter(t, db)
	commit(t, first)
	require.NoError(t, g.Wait())
	commit(t, second)
	require.Equal(t, []string{"first", "second"}, ids(stored(t, db)))
}

// Two schemas are two outboxes: neither waits for the other's locks.
func TestLocksBelongToTheSchema(t *testing.T) {
	t.Parallel()
	one, two := testkit.Database(t), testkit.Database(t)
	tx := begin(t, one)
	_, err := newOutbox(t, one, outbox.Options{LockKeys: true}).Enqueue(t.Context(), tx, event("1", "k"))
	require.NoError(t, err)
	_, err = two.Pool.Exec(t.Context(), `SET lock_timeout = '5s'; SELECT `+two.Schema+`.enqueue('a', '', key => 'k', lock_key => true)`)
	require.NoError(t, err)
}

// Writers that name the same keys in opposite order cannot deadlock, because one call takes its locks sorted;
// and order per key follows commits. The commit order is written down by each writer inside its transaction.
func TestManyWritersWithKeysInOppositeOrder(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	box := newOutbox(t, db, outbox.Options{LockKeys: true, Once: true})
	const keys, writers, rounds = 40, 6, 15
	var mutex sync.Mutex
	committed := map[string]bool{}
	var g errgroup.Group
	for w := range writers {
		g.Go(func() error {
			for r := range rounds {
				var msgs []message.Message
				for k := range keys {
					if w%2 == 1 {
						k = keys - 1 - k
					}
					msgs = append(msgs, event(fmt.Sprintf("%d-%d-%d", k, w, r), fmt.Sprint("key ", k)))
				}
				err := pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
					_, err := box.Enqueue(t.Context(), tx, msgs...)
					return err
				})
				if err != nil {
					return err
				}
				mutex.Lock()
				committed[fmt.Sprintf("%d-%d", w, r)] = true
				mutex.Unlock()
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
	require.Len(t, committed, writers*rounds)
	// Each key is locked by one transaction at a time, so every key saw the transactions in the same order.
	orders := map[string][]string{}
	for _, r := range stored(t, db) {
		orders[r.Key] = append(orders[r.Key], r.MessageID[len(r.Key)-len("key ")+1:])
	}
	require.Len(t, orders, keys)
	for key, order := range orders {
		require.Equal(t, orders["key 0"], order, key)
	}
}

// The control: without the lock, two transactions do draw ids against the order of their commits.
func TestWithoutTheLockIdsDoNotFollowCommits(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	box := newOutbox(t, db, outbox.Options{})
	first, second := begin(t, db), begin(t, db)
	_, err := box.Enqueue(t.Context(), first, event("committed last", "k"))
	require.NoError(t, err)
	_, err = box.Enqueue(t.Context(), second, event("committed first", "k"))
	require.NoError(t, err)
	commit(t, second)
	commit(t, first)
	require.Equal(t, []string{"committed last", "committed first"}, ids(stored(t, db)))
}

func TestTwentyThousandKeysInOneTransaction(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	msgs := make([]message.Message, 20_000)
	for i := range msgs {
		msgs[i] = event(fmt.Sprint("id ", i), fmt.Sprint("key ", i))
	}
	tx := begin(t, db)
	n, err := newOutbox(t, db, outbox.Options{LockKeys: true, Once: true}).Enqueue(t.Context(), tx, msgs...)
	require.NoError(t, err)
	require.Equal(t, len(msgs), n)
	var locks int
	require.NoError(t, tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'`).Scan(&locks))
	require.LessOrEqual(t, locks, 1024)
	require.Greater(t, locks, 1000)
	commit(t, tx)
	require.Len(t, stored(t, db), len(msgs))
}

// Serializable callers get a failure that says "try again", not a wrong answer.
func TestOnceUnderRepeatableRead(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	once := newOutbox(t, db, outbox.Options{Once: true})
	old, err := db.Pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { require.NoError(t, old.Rollback(t.Context())) }()
	_, err = old.Exec(t.Context(), `SELECT FROM `+db.Schema+`.outbox_once`) // takes the snapshot
	require.NoError(t, err)
	tx := begin(t, db)
	_, err = once.Enqueue(t.Context(), tx, event("a", ""))
	require.NoError(t, err)
	commit(t, tx)
	_, err = once.Enqueue(t.Context(), old, event("a", ""))
	var server *pgconn.PgError
	require.ErrorAs(t, err, &server, "%v", err)
	require.Equal(t, "40001", server.Code)
}
