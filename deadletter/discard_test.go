package deadletter_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
)

func TestDiscardNeedsAReasonAndDropsOnlyWhatMatches(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.fill(dlq, letter("a", "order.paid", "x", "x"), letter("b", "noise", "x", "x"), letter("c", "order.paid", "x", "x"))
	r := deadletter.DiscardRequest{Common: deadletter.Common{Queue: dlq, Who: "ann", Filter: deadletter.Filter{Type: "order.paid"}}}
	for _, reason := range []string{"", " \t\n", "a\nb", "a\x1b[31mb", "a\u202eb", "\xff", strings.Repeat("x", 1001)} {
		r.Reason = reason
		_, err := s.letters.Discard(t.Context(), r)
		require.ErrorIs(t, err, deadletter.ErrBadRequest, "%q", reason)
	}
	r.Reason = "order was refunded by hand"
	result, err := s.letters.Discard(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, 2, result.Done)
	require.Equal(t, []string{"b"}, s.ids(dlq))
	require.Zero(t, s.count(work))
	require.Equal(t, []string{"a", "c"}, s.recorded("discarded"))
	require.Equal(t, r.Reason, s.audit()[1].Reason)
}

// Without a record nothing is dropped.
func TestDiscardKeepsWhatCannotBeRecorded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 20, "order.paid")
	s.fill(dlq, letters...)
	_, err := s.db.Pool.Exec(t.Context(), "ALTER TABLE "+s.db.Schema+".audit ADD CHECK (outcome <> 'discarded')")
	require.NoError(t, err)
	result, err := s.letters.Discard(t.Context(), deadletter.DiscardRequest{
		Common: deadletter.Common{Queue: dlq, Who: "ann", Reason: "test"},
	})
	require.Error(t, err)
	require.Zero(t, result.Done)
	require.Equal(t, ids, s.ids(dlq))
}
