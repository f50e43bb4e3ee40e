package deadletter_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
)

// A broker under load takes long to give back what a look held, and whoever counts the letters meanwhile would take the rest to be gone.
// Here somebody else is in between, who gives one back every few seconds: longer, all in all, than nothing may come.
func TestALookEndsWhenItsLettersAreBack(t *testing.T) {
	t.Parallel()
	const n = 4
	s := newStage(t)
	letters, ids := batch("m", n, "order.paid")
	s.fill(dlq, letters...)
	ch, err := s.conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.Qos(n, 0, false))
	seen := 0
	between := make(chan error, 1)
	count, err := s.letters.Export(t.Context(), deadletter.ExportRequest{Queue: work, Who: "ann@test", Write: func(deadletter.Record) error {
		if seen++; seen < n {
			return nil
		}
		deliveries, err := ch.Consume(dlq, "between", false, false, false, false, nil)
		go func() {
			for range n {
				<-deliveries
			}
			if err := ch.Cancel("between", false); err != nil {
				between <- err
				return
			}
			ticker := time.NewTicker(4 * time.Second)
			defer ticker.Stop()
			for tag := range uint64(n) {
				<-ticker.C
				if err := ch.Nack(tag+1, false, true); err != nil {
					between <- err
					return
				}
			}
			between <- nil
		}()
		return err
	}})
	require.NoError(t, err)
	require.Equal(t, n, count)
	require.Equal(t, n, s.count(dlq), "they are back")
	require.NoError(t, <-between)
	require.ElementsMatch(t, ids, s.ids(dlq))
}
