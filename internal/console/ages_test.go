package console_test

import (
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/internal/console"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// A queue that keeps its order, whose head leaves now and then: what is reckoned is never off by more than the time between two samples.
func TestTheAgeOfTheOldestIsReckoned(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p, step, now := console.NewPassage(), 5*time.Second, time.Unix(1_800_000_000, 0)
		var waiting []time.Time
		left, watched := int64(0), now
		for range rapid.IntRange(0, 40).Draw(t, "before") { // nobody saw them come
			waiting = append(waiting, now.Add(-time.Hour))
		}
		old := len(waiting)
		for range rapid.IntRange(1, 80).Draw(t, "samples") {
			out := rapid.IntRange(0, len(waiting)).Draw(t, "out")
			waiting, left, old = waiting[out:], left+int64(out), max(old-out, 0)
			for range rapid.IntRange(0, 20).Draw(t, "in") {
				waiting = append(waiting, now)
			}
			p.See(now, left, left+int64(len(waiting)), int64(len(waiting)))
			wait, bound := p.Oldest(now)
			switch {
			case len(waiting) == 0:
				require.Empty(t, bound)
			case bound == "at least":
				require.GreaterOrEqual(t, now.Sub(waiting[0]), wait)
				require.True(t, old > 0 || waiting[0].Equal(watched), "it was seen to come")
			default:
				require.Equal(t, "about", bound)
				require.InDelta(t, now.Sub(waiting[0]).Seconds(), wait.Seconds(), step.Seconds())
			}
			now = now.Add(step)
		}
	})
}

func TestTheAgeOfTheOldestAfterTheBrokerForgot(t *testing.T) {
	t.Parallel()
	p, now := console.NewPassage(), time.Unix(1_800_000_000, 0)
	p.See(now, 100, 110, 10)
	p.See(now.Add(time.Minute), 100, 120, 20)
	p.See(now.Add(2*time.Minute), 0, 20, 20) // its node was restarted
	wait, bound := p.Oldest(now.Add(3 * time.Minute))
	require.Empty(t, bound, "%s: the statistics are old", wait)
	wait, bound = p.Oldest(now.Add(2*time.Minute + 10*time.Second))
	require.Equal(t, "at least", bound)
	require.Equal(t, 10*time.Second, wait)

	for i := range 5000 { // hours, and little memory
		p.See(now.Add(time.Duration(i+30)*5*time.Second), 0, int64(20+i), int64(20+i))
	}
	require.Less(t, p.Len(), 600)
	_, bound = p.Oldest(now.Add(5030 * 5 * time.Second))
	require.Equal(t, "at least", bound)
}

func TestTheOldestOfSeveralQueues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ of, want string }{
		{"", ""},
		{"about 9", "about 9 s"},
		{"about 9, about 12", "about 12 s"},
		{"about 9, at most 12", "at most 12 s"},
		{"about 12, at most 9", "about 12 s"},
		{"about 12, at least 9", "at least 12 s"},
		{"at most 40, at least 9", "at least 9 s"},
		{"about 12, ", "at least 12 s"},
		{"at most 12, ", ""},
	} {
		require.Equal(t, c.want, console.Eldest(c.of), c.of)
	}
}

// What waits in the broker while nobody consumes grows old on the overview, and in its queue's row.
func TestTheOldestOnTheOverview(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.see("/", ">empty<") // it was seen so
	testkit.Eventually(t, patience, "counted", func() bool { return s.served.Counted(work) })
	confirm, err := s.ch.PublishWithDeferredConfirm("", "stock.reserve.retry", true, false, letter("r1", "order.created", "transient", "503"))
	require.NoError(t, err)
	require.True(t, confirm.Wait())
	began := time.Now()
	s.send("m1", "m2")
	age := regexp.MustCompile(`oldest (about|at most|at least) (\d+) s`)
	testkit.EventuallyNil(t, patience, "an age", func() error {
		page := s.page("/queues")
		found := age.FindStringSubmatch(page)
		if found == nil {
			return fmt.Errorf("none in %.200s", page)
		}
		shown, err := strconv.Atoi(found[2])
		require.NoError(t, err)
		require.NotEqual(t, "at least", found[1], "it was seen to come")
		require.LessOrEqual(t, shown, int(time.Since(began).Seconds())+30)
		if shown < 3 {
			return fmt.Errorf("too young: %d s", shown)
		}
		return nil
	})
	require.Regexp(t, age, s.page("/"))
	require.Regexp(t, `data-th="Retry" class="n">1 <span class="quiet small">oldest (about|at most) \d+ s<`, s.page("/queues?queue=stock.reserve"))

	s.stop()
	s.serve()
	s.see("/queues", "oldest at least") // one that comes later can only say for how long it has seen them
	s.consume(func(string) error { return nil })
	s.see("/queues?queue="+work, `data-th="Waiting" class="n">0</td>`)
}
