package telemetry_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

func TestReminderTellsChangesAndOnceAMinute(t *testing.T) {
	t.Parallel()
	var r telemetry.Reminder
	now := time.Now()
	require.False(t, r.Over(), "nothing was told")
	require.True(t, r.Due("away", now))
	require.False(t, r.Due("away", now.Add(59*time.Second)))
	require.True(t, r.Due("away", now.Add(time.Minute)), "it still lasts")
	require.True(t, r.Due("denied", now.Add(61*time.Second)), "another reason")
	require.True(t, r.Over())
	require.True(t, r.Due("denied", now.Add(62*time.Second)), "it has come back")
}
