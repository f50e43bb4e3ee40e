package dlqindex_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/internal/dlqindex"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// Consumers, redrives and scans write the rows of the same letters, each in an order of its own.
func TestWritersOfTheSameLettersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	store := dlqindex.New(db.Pool, db.Schema)
	queue, err := store.Queue(t.Context(), "/", "q")
	require.NoError(t, err)
	letters := make([]dlqindex.Entry, 300)
	keys := make([]uuid.UUID, len(letters))
	for i := range letters {
		keys[i] = uuid.New()
		letters[i] = dlqindex.Entry{Key: keys[i], MessageID: keys[i].String(), Type: "t", Class: "permanent", Fingerprint: "f", Copies: 1}
	}
	const rounds = 40
	writers, ctx := errgroup.WithContext(t.Context())
	writers.Go(func() error {
		for round := range rounds {
			again := slices.Clone(letters)
			for i := range again {
				again[i].DiedAt = time.Now().Add(time.Duration(round) * time.Second)
			}
			if err := store.Died(ctx, queue, again); err != nil {
				return err
			}
		}
		return nil
	})
	moved := func(write func(tx pgx.Tx, keys []uuid.UUID) error) func() error {
		return func() error {
			for range rounds {
				shuffled := slices.Clone(keys)
				rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
				if err := pgx.BeginFunc(ctx, db.Pool, func(tx pgx.Tx) error { return write(tx, shuffled) }); err != nil {
					return err
				}
			}
			return nil
		}
	}
	writers.Go(moved(func(tx pgx.Tx, keys []uuid.UUID) error { return store.Gone(ctx, tx, "/", "q", "redriven", keys) }))
	writers.Go(moved(func(tx pgx.Tx, keys []uuid.UUID) error { return store.Back(ctx, tx, "/", "q", keys) }))
	writers.Go(func() error {
		for range rounds {
			scan, err := store.Begin(ctx, "/", "q")
			if err != nil {
				return err
			}
			if _, err := scan.Complete(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, writers.Wait())
}
