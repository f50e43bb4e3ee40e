package drill_test

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deploy/prometheus"
	"github.com/surefoot-mq/surefoot/internal/drill"
)

// needsTool leaves a test out where a program is missing; not where everything must be there.
func needsTool(t *testing.T, d drill.Drill) {
	t.Helper()
	if _, err := exec.LookPath(drill.Program(d.Tool, os.Environ())); d.Tool != "" && err != nil && os.Getenv("CI") != "true" {
		t.Skipf("%s is missing: scripts/alerts install", d.Tool)
	}
}

// Each exercise of the game day names its alerts, the drill asserts these and no others, and they are shipped.
func TestTheGameDayAndItsDrillHaveTheSameAlerts(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/game-day.md")
	require.NoError(t, err)
	_, exercises, found := strings.Cut(string(text), "\n## 1. ")
	require.True(t, found)
	exercises, _, found = strings.Cut(exercises, "\n## After")
	require.True(t, found)
	var written, asserted []string
	for exercise := range strings.SplitSeq(exercises, "\n## ") {
		_, alerts, found := strings.Cut(exercise, "\nAlert: ")
		require.True(t, found, exercise)
		of := regexp.MustCompile("`(Surefoot[A-Za-z]+)`").FindAllStringSubmatch(alerts, -1)
		require.NotEmpty(t, of, exercise)
		for _, match := range of {
			written = append(written, match[1])
		}
	}
	for _, a := range drill.GameDay() {
		asserted = append(asserted, a.Alert)
		require.Contains(t, prometheus.Rules, "- alert: "+a.Alert+"\n")
	}
	require.ElementsMatch(t, written, asserted)
	d := named(t, "game-day")
	for _, arm := range d.ArmNames() {
		var checked []string
		for _, c := range (drill.Played{}).Under(d, arm) {
			checked = append(checked, c.Figure)
		}
		slices.Sort(checked)
		slices.Sort(asserted)
		require.Equal(t, asserted, checked, arm)
	}
}

// What was scraped becomes what Prometheus would have stored, a minute for each step.
func TestARecordingIsWhatPrometheusWouldHaveStored(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		series string
		texts  []string
		want   string
	}{
		"counts are as they are":          {`a_total{queue="q"}`, []string{`a_total{queue="q"} 1.5e+09`, `a_total{queue="q"} 2`}, "1500000000 2"},
		"another series is another":       {`a_total{queue="q"}`, []string{`a_total{queue="p"} 1`, `a_total{queue="q"} 2`}, "_ 2"},
		"ages are as much longer":         {"age_seconds", []string{"age_seconds 0.5"}, "150"},
		"times count from the beginning":  {"last_timestamp_seconds", []string{"last_timestamp_seconds 1000000002", "last_timestamp_seconds 999999999"}, "600 -300"},
		"a failed scrape makes it stale":  {"a", []string{"", "a 1", "", "", "a 2"}, "_ 1 stale _ 2"},
		"so does an answer without it":    {"a", []string{"a 1", "b 1"}, "1 stale"},
		"without a scrape nothing is new": {"a", []string{"a 1", "-", "a 2", "-", ""}, "1 _ 2 _ stale"},
		"comments and garbage are none":   {"a", []string{"# HELP a a 1\na\na x\n\n"}, "_"},
	} {
		require.Equal(t, tt.want, drill.Recorded(tt.series, tt.texts...), name)
	}
	require.Equal(t, `a{job="surefoot",instance="r"}`, drill.Labelled("a", "r"))
	require.Equal(t, `a{job="surefoot",instance="r",queue="{"}`, drill.Labelled(`a{queue="{"}`, "r"))
}

func TestWithoutItsToolADrillIsRefused(t *testing.T) {
	t.Parallel()
	d := named(t, "game-day")
	d.Tool = "surefoot-has-no-such-program"
	runner, err := drill.New(options(t))
	require.NoError(t, err)
	reports, err := runner.Run(t.Context(), []drill.Drill{d})
	require.NoError(t, err)
	require.Equal(t, drill.Refused, reports[0].Verdict)
	require.Equal(t, "surefoot-has-no-such-program is missing, and the drill needs it: scripts/alerts install", reports[0].Reason)
}

func TestAnotherPromtoolMayBeNamed(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Environ = []string{"SUREFOOT_PROMTOOL=/no/such/promtool"}
	runner, err := drill.New(o)
	require.NoError(t, err)
	reports, err := runner.Run(t.Context(), []drill.Drill{named(t, "game-day")})
	require.NoError(t, err)
	require.Equal(t, "/no/such/promtool is missing, and the drill needs it: scripts/alerts install", reports[0].Reason)
	require.Equal(t, "other", drill.Program("other", o.Environ))
	require.Equal(t, "promtool", drill.Program("promtool", []string{"SUREFOOT_PROMTOOL="}))
}
