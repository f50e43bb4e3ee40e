package audit_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// Entries come once each, also one whose transaction commits after later ones, and a number that was given up holds nothing back for ever.
func TestFollowingPassesOverNothing(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	write := func(tx audit.Execer, message string) {
		require.NoError(t, audit.Write(t.Context(), tx, db.Schema, audit.NewOperation("ann", "test", "q", ""), audit.Entry{MessageID: message, Outcome: "done"}))
	}
	begin := func() pgx.Tx {
		tx, err := db.Pool.Begin(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
		return tx
	}
	write(db.Pool, "before")
	after, err := audit.Start(t.Context(), db.Pool, db.Schema, time.Time{})
	require.NoError(t, err)
	f := audit.NewFollower(db.Pool, db.Schema, after, 10*time.Millisecond)
	next := func(want ...string) {
		t.Helper()
		var got []string
		for len(got) < len(want) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			items, err := f.Next(ctx)
			cancel()
			require.NoError(t, err, "after %v", got)
			for _, i := range items {
				got = append(got, i.MessageID)
			}
		}
		require.Equal(t, want, got)
	}
	nothing := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		items, err := f.Next(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded, "%v", items)
	}

	late, lost := begin(), begin()
	write(late, "late")
	write(lost, "lost")
	write(db.Pool, "first")
	next("first")
	nothing() // long enough for many looks at the gap
	write(db.Pool, "second")
	next("second")
	require.NoError(t, late.Commit(t.Context()))
	next("late")
	require.NoError(t, lost.Rollback(t.Context()))
	nothing()
	write(db.Pool, "third")
	next("third")

	again, err := audit.Start(t.Context(), db.Pool, db.Schema, time.Now().Add(-time.Hour))
	require.NoError(t, err)
	f = audit.NewFollower(db.Pool, db.Schema, again, 10*time.Millisecond)
	next("before", "late", "first", "second", "third")
}
