package consumer

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// The rules as a model: a lane's jobs are in one batch at a time and in order, those of a failed batch run singly
// before later ones, suspects are in no batch.
func TestBatchesKeepLanesInOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		q := newQueue(OrderLanes)
		var running [][]*job
		ended := map[string]int64{}
		n := 0
		fits := func(j *job) bool { return !j.suspect && !j.single }
		begin := func() bool {
			first := q.next()
			if first == nil {
				return false
			}
			jobs := []*job{first}
			if fits(first) {
				jobs = q.batch(4, fits)
				require.Same(t, first, jobs[0])
			}
			for _, j := range jobs {
				for _, others := range running {
					for _, other := range others {
						require.False(t, j.suspect || other.suspect, "a suspect is not alone")
						require.False(t, j.msg.Key != "" && j.msg.Key == other.msg.Key, "two batches with one key")
					}
				}
			}
			for _, j := range jobs {
				q.start(j)
			}
			running = append(running, jobs)
			return true
		}
		end := func(failed bool) {
			if len(running) == 0 {
				return
			}
			at := rapid.IntRange(0, len(running)-1).Draw(t, "which")
			jobs := running[at]
			running = append(running[:at:at], running[at+1:]...)
			for _, j := range jobs {
				q.ended(j)
			}
			for _, j := range jobs {
				if failed {
					j.single = true
					q.back(j)
				} else if j.msg.Key != "" {
					require.Less(t, ended[j.msg.Key], j.received.UnixNano(), "order within a key")
					ended[j.msg.Key] = j.received.UnixNano()
				}
			}
		}
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "op") {
			case 0, 1, 2:
				n++
				q.add(testJob(n, rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "key"), rapid.IntRange(0, 7).Draw(t, "suspect") == 0))
			case 3:
				begin()
			case 4:
				end(false)
			case 5:
				end(true)
			}
		}
		for len(running) > 0 || len(q.waiting) > 0 {
			if !begin() {
				require.NotEmpty(t, running, "something always can go on")
				end(false)
			}
		}
	})
}
