package bench_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/bench"
)

func TestFiguresAreMediansOfTheRoundsRatios(t *testing.T) {
	t.Parallel()
	sample := func(round int, rate float64) bench.Sample { return bench.Sample{Round: round, Seconds: 1, Rate: rate} }
	r := &bench.Report{Arms: []bench.Arm{
		{Name: "a", Samples: []bench.Sample{sample(1, 10), sample(2, 300), sample(3, 50), sample(4, 7)}},
		{Name: "b", Samples: []bench.Sample{sample(2, 100), sample(3, 100), sample(1, 10), sample(4, 0)}}, // in another order; one stood still
	}}
	ratios := r.Ratios("a", "b")
	require.ElementsMatch(t, []float64{1, 3, 0.5}, ratios)
	r.Figure("a / b", "", ratios, &bench.Goal{Value: 0.9})
	r.Figure("nothing", "", nil, &bench.Goal{Value: 1})
	require.Len(t, r.Figures, 1, "what was not measured is no figure")
	require.Equal(t, bench.Spread{Median: 1, Min: 0.5, Max: 3}, r.Figures[0].Spread)
	require.True(t, *r.Figures[0].Met)
	require.Empty(t, r.Ratios("a", "c"))
}

func TestOnlyRatiosFarFromTheirGoalAreBelow(t *testing.T) {
	t.Parallel()
	r := &bench.Report{}
	for name, value := range map[string]float64{"near": 0.41, "far": 0.39, "exact": 0.8} {
		r.Figure(name, "", []float64{value}, &bench.Goal{Value: 0.8})
	}
	r.Figure("near above", "", []float64{3.9}, &bench.Goal{AtMost: true, Value: 2})
	r.Figure("far above", "", []float64{4.1}, &bench.Goal{AtMost: true, Value: 2})
	r.Figure("amount", "us", []float64{400}, &bench.Goal{AtMost: true, Value: 2})
	r.Figure("without a goal", "", []float64{0}, nil)
	below := map[string]bool{}
	for _, f := range r.Below(0.5) {
		below[f.Name] = true
	}
	require.Equal(t, map[string]bool{"far": true, "far above": true}, below)
	for _, f := range r.Figures {
		if f.Goal != nil {
			require.Equal(t, f.Name == "exact", *f.Met, "%s: a missed goal is shown as missed", f.Name)
		}
	}
}

func TestWhatCameIsCheckedByNumberAndKey(t *testing.T) {
	t.Parallel()
	distinct, repeated, disordered, foreign := bench.Came(
		[2]string{"m1", "a"}, [2]string{"m3", "a"}, [2]string{"m2", "b"}, // in order by key
		[2]string{"m4", "b"}, [2]string{"m3", "a"}, // again
		[2]string{"m6", "b"}, [2]string{"m5", "b"}, // swapped
		[2]string{"m100000", "a"})
	require.Equal(t, []int{7, 1, 1}, []int{distinct, repeated, disordered})
	require.Empty(t, foreign)
	for _, id := range []string{"", "x", "m-", "m99999999999999999999"} {
		_, _, _, foreign = bench.Came([2]string{id + "\x00", "a"})
		require.NotEmpty(t, foreign, id)
	}
}

func TestStatOfAHostileName(t *testing.T) {
	t.Parallel()
	parent, own, reaped, ok := bench.ParseStat("12 (a) R 1 (b)) S 7 12 12 0 -1 4194560 1 2 3 4 150 50 1000 1 20 0 1 0 5 6 7\n")
	require.True(t, ok)
	require.Equal(t, 7, parent)
	require.Equal(t, 2*time.Second, own)
	require.Equal(t, 10010*time.Millisecond, reaped)
	for _, bad := range []string{"", ")", "12 (a) S 1 2", "no parenthesis"} {
		_, _, _, ok := bench.ParseStat(bad)
		require.False(t, ok, bad)
	}
}

func TestOptionsNameEveryFault(t *testing.T) {
	t.Parallel()
	_, err := bench.New(bench.Options{Kind: "lunch", Rounds: -1, Namespace: `x"; DROP`, Held: "breath", Backlog: 1, Steady: -1, Prefetch: 1})
	for _, text := range []string{
		`no benchmark "lunch"`, "DatabaseURL, AMQPURL and Binary", "rounds, rows", "cannot be a schema", "not \"breath\"", "one at a time", "must not be negative", "workers 1 to prefetch",
	} {
		require.ErrorContains(t, err, text)
	}
	_, err = bench.New(bench.Options{Kind: bench.Relay, DatabaseURL: "d", AMQPURL: "a", Binary: "b", Held: bench.HeldWrite, Rounds: 1})
	require.ErrorContains(t, err, "2 rounds or more")
}
