package consumer

import (
	"context"
	"strconv"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/message"
)

func testJob(n int, key string, suspect bool) *job {
	return &job{
		from: &intake{alive: context.Background()}, msg: message.Message{ID: strconv.Itoa(n), Key: key},
		suspect: suspect, received: time.Unix(0, int64(n)), delivery: &amqp.Delivery{Redelivered: suspect},
	}
}

// The rules as a model: a lane runs one job at a time and in order, held ones included; a suspect runs alone.
func TestLanesKeepOrderAndSuspectsRunAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue(OrderLanes)
		running := map[*job]bool{}
		ended := map[string]int{} // by key, the last that ended
		n := 0
		end := func(hold bool) {
			for j := range running {
				delete(running, j)
				q.ended(j)
				if hold {
					q.back(j)
				} else if j.msg.Key != "" {
					require.Less(t, ended[j.msg.Key], int(j.received.UnixNano()), "order within a key")
					ended[j.msg.Key] = int(j.received.UnixNano())
				}
				return
			}
		}
		start := func() bool {
			j := q.next()
			if j == nil {
				return false
			}
			for other := range running {
				require.False(t, j.suspect || other.suspect, "a suspect is not alone")
				require.False(t, j.msg.Key != "" && j.msg.Key == other.msg.Key, "two of one key")
			}
			q.start(j)
			running[j] = true
			return true
		}
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0, 1:
				n++
				q.add(testJob(n, rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "key"), rapid.IntRange(0, 5).Draw(t, "suspect") == 0))
			case 2:
				start()
			case 3:
				end(false)
			case 4:
				end(true)
			}
		}
		for len(running) > 0 || len(q.waiting) > 0 {
			progress := start()
			if !progress {
				require.NotEmpty(t, running, "something always can go on")
				end(false)
			}
		}
	})
}

func TestTheLeastDeliveredSuspectGoesFirst(t *testing.T) {
	t.Parallel()
	q := newQueue(OrderNone)
	for i, count := range []int64{3, 1, 2} {
		j := testJob(i, "", true)
		j.delivery.Headers = amqp.Table{"x-delivery-count": count}
		q.add(j)
	}
	q.add(testJob(9, "", false))
	var order []string
	for range 4 {
		j := q.next()
		q.start(j)
		q.ended(j)
		order = append(order, j.msg.ID)
	}
	require.Equal(t, []string{"9", "1", "2", "0"}, order)
}

func TestJobsOfAnEndedSubscriptionAreForgotten(t *testing.T) {
	t.Parallel()
	q := newQueue(OrderNone)
	dead, cancel := context.WithCancel(context.Background())
	cancel()
	j := testJob(1, "", false)
	j.from.alive = dead
	q.add(j)
	require.Nil(t, q.next())
	require.Empty(t, q.waiting)
}

func TestProbesTakeTurns(t *testing.T) {
	t.Parallel()
	q := newQueue(OrderNone)
	for i := range 3 {
		q.add(testJob(i, "", false))
	}
	seen := map[string]bool{}
	for range 3 {
		j := q.probe()
		q.start(j)
		require.Nil(t, q.probe(), "one at a time")
		q.ended(j)
		q.back(j)
		seen[j.msg.ID] = true
	}
	require.Len(t, seen, 3)
}

func TestSuspects(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name        string
		redelivered bool
		headers     amqp.Table
		suspect     bool
		count       int64
	}{
		{"first delivery", false, nil, false, 0},
		{"first delivery with a stale count", false, amqp.Table{"x-delivery-count": int64(3)}, false, 0},
		{"classic queue", true, nil, true, 0},
		{"quorum queue up to 4.2", true, amqp.Table{"x-delivery-count": int64(1)}, true, 1},
		{"4.3, returned by a nack", true, amqp.Table{"x-acquired-count": int64(1)}, false, 0},
		{"4.3, its consumer died", true, amqp.Table{"x-acquired-count": int64(1), "x-delivery-count": int64(1)}, true, 1},
	} {
		d := amqp.Delivery{Redelivered: c.redelivered, Headers: c.headers}
		require.Equal(t, c.suspect, isSuspect(&d), c.name)
		require.Equal(t, c.count, deliveryCount(&d), c.name)
	}
}
