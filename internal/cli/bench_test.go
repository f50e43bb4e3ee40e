package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/bench"
)

func TestBenchSaysWhatToDo(t *testing.T) {
	t.Parallel()
	away := []string{"SUREFOOT_DATABASE_URL=postgres://ann:hunter2@127.0.0.1:1/d", "SUREFOOT_AMQP_URL=amqp://ann:hunter2@127.0.0.1:1/"}
	for name, tt := range map[string]struct {
		environ []string
		args    []string
		code    int
		want    string
	}{
		"no verb":      {away, []string{"bench"}, ExitUsage, "bench needs one of: consume, enqueue, latency, redrive, relay, worker\n"},
		"no services":  {nil, []string{"bench", "relay"}, ExitUsage, "hint: `make bench` starts a local stack"},
		"nobody there": {away, []string{"bench", "relay"}, ExitUnreachable, "`make bench` starts a local stack"},
		"names":        {away, []string{"bench", "relay", "-o", "name"}, ExitUsage, "use table, json or jsonl"},
		"floor":        {away, []string{"bench", "enqueue", "--floor", "2"}, ExitUsage, "--floor must be from 0 to 1"},
		"held":         {away, []string{"bench", "relay", "--held", "breath"}, ExitUsage, `must be snapshot, write or write-other-db, not "breath"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := demoEnv("", tt.environ...)
			require.Equal(t, tt.code, Main(t.Context(), tt.args, env))
			shown := env.Stderr.(*strings.Builder).String()
			require.Contains(t, shown, tt.want)
			require.NotContains(t, shown, "hunter2")
		})
	}
}

func TestBenchShowsMissedGoalsAndFailsOnlyBelowTheFloor(t *testing.T) {
	t.Parallel()
	met, missed := true, false
	us := 12.5
	r := &bench.Report{
		Kind: bench.Relay, Machine: bench.Machine{CPUs: 2, Postgres: "15\x1b[2J"},
		Arms: []bench.Arm{{Name: "relay", Samples: []bench.Sample{
			{Round: 1, Seconds: 1, Rate: 9000, CPU: &us}, {Round: 2, Seconds: 1, Rate: 11000, CPU: &us}, {Round: 3, Seconds: 1, Rate: 10000, CPU: &us},
		}}},
		Figures: []bench.Figure{
			{Name: "relay / bare", Spread: bench.Spread{Median: 0.5, Min: 0.4, Max: 0.6}, Goal: &bench.Goal{Value: 0.8}, Met: &missed},
			{Name: "memory", Unit: "MiB", Spread: bench.Spread{Median: 20, Min: 20, Max: 20}, Goal: &bench.Goal{AtMost: true, Value: 64}, Met: &met},
			{Name: "told", Spread: bench.Spread{Median: 1}},
		},
	}
	env := demoEnv("")
	s := newSession(env)
	require.NoError(t, s.showReport(r))
	out := env.Stdout.(*strings.Builder).String()
	require.Contains(t, out, `15\x1b[2J`)
	require.Regexp(t, `(?m)^relay +3 +10000 \(9000-11000\) +12\.5 +- +- +- +- +-$`, out)
	require.Regexp(t, `(?m)^relay / bare +0\.50 +0\.40 +0\.60 +- +>= 0\.80 +MISSED$`, out)
	require.Regexp(t, `(?m)^memory +20\.0 +20\.0 +20\.0 +MiB +<= 64\.0 +met$`, out)

	require.NoError(t, belowFloor(r, 0), "a missed goal alone fails nothing")
	require.NoError(t, belowFloor(r, 0.5))
	r.Figures[0].Median = 0.39
	require.EqualError(t, belowFloor(r, 0.5), "below 0.5 of the goal: relay / bare is 0.39, the goal >= 0.80")
}
