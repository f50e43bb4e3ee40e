package deadletter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
)

func TestSinceIsATimeOrAnAge(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 31, 8, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"": {}, "0s": now, "90m": now.Add(-90 * time.Minute), "2026-01-30T08:00:00+01:00": now.Add(-25 * time.Hour), "2027-01-31T08:00:00Z": now.AddDate(1, 0, 0),
	} {
		at, err := deadletter.ParseSince(text, now)
		require.NoError(t, err, text)
		require.True(t, want.Equal(at), "%s: %s", text, at)
	}
	for _, text := range []string{"yesterday", "-1h", "2026-01-30", "90", " "} {
		_, err := deadletter.ParseSince(text, now)
		require.ErrorIs(t, err, deadletter.ErrBadRequest, text)
	}
}
