package drill_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/internal/drill"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// options for the services of the test.
func options(t *testing.T) drill.Options {
	t.Helper()
	broker := testkit.Broker(t)
	return drill.Options{
		DatabaseURL: testkit.Database(t).URL, AMQPURL: broker.URL, ManagementURL: broker.ManagementURL, Binary: testkit.Binary(t),
		Environ: os.Environ(), Host: "test", Version: "test",
	}
}

// Each check has a figure that its arm can owe, and every arm has checks.
func TestEveryArmIsChecked(t *testing.T) {
	t.Parallel()
	for _, d := range drill.All() {
		require.NotEmpty(t, d.Proves, d.Name)
		require.Contains(t, []string{drill.SectionCalls, drill.SectionOutcomes, drill.SectionOutbox, drill.SectionQueues, drill.SectionSaga, drill.SectionGameDay}, d.Section, d.Name)
		require.Contains(t, d.ArmNames(), drill.After, "%s shows the pattern", d.Name)
		for _, arm := range d.ArmNames() {
			require.NotEmpty(t, drill.Played{}.Under(d, arm), "%s %s has no checks", d.Name, arm)
			for _, c := range (drill.Played{}).Under(d, arm) {
				require.False(t, c.Holds, "%s %s: %s holds although nothing was observed", d.Name, arm, c.Figure)
			}
		}
	}
}

// A drill that cannot fail is worthless: what is observed with the pattern off must not pass for the pattern. They mostly wait: so
// more play at a time than the machine has processors.
func TestAfterIsRedWithoutThePattern(t *testing.T) {
	t.Parallel()
	o, all := options(t), drill.All()
	played, failed := make([]drill.Played, len(all)), make([]error, len(all))
	var group errgroup.Group
	group.SetLimit(8)
	for i, d := range all {
		require.NotEqual(t, drill.After, d.ArmNames()[0], "%s has an arm without the pattern", d.Name)
		group.Go(func() error {
			played[i], failed[i] = drill.Play(t.Context(), o, d, d.ArmNames()[0])
			return nil
		})
	}
	require.NoError(t, group.Wait())
	for i, d := range all {
		t.Run(d.Name, func(t *testing.T) {
			needsTool(t, d)
			require.NoError(t, failed[i])
			require.Empty(t, played[i].Report.Error)
			red := 0
			for _, c := range played[i].Under(d, drill.After) {
				if !c.Holds && c.Observed != drill.NotObserved {
					red++
				}
			}
			require.Positive(t, red, "the checks of after hold without the pattern: %+v", played[i].Report.Figures)
			for _, c := range played[i].Under(d, d.ArmNames()[0]) {
				require.True(t, c.Holds, "the harm is proven: %+v", c)
			}
		})
	}
}

func named(t *testing.T, name string) drill.Drill {
	t.Helper()
	d, ok := drill.Find(name)
	require.True(t, ok)
	return d
}

// leftovers are the schemas and vhosts of drills.
func leftovers(t *testing.T, o drill.Options, run string) (names []string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), o.DatabaseURL)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), `SELECT nspname FROM pg_namespace WHERE starts_with(nspname, 'surefoot_drill_' || $1)`, run)
	require.NoError(t, err)
	names, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return names
}

func TestAReportIsWrittenAndNothingIsLeft(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Reports, o.Arm = t.TempDir(), drill.After
	o.Set = []drill.Assignment{{Name: "burst", Text: "20"}, {Name: "seed", Text: "42"}}
	runner, err := drill.New(o)
	require.NoError(t, err)
	var seen []string
	reports, err := runner.Run(t.Context(), []drill.Drill{named(t, "rate-limit"), named(t, "rate-limit")})
	require.NoError(t, err)
	for _, r := range reports {
		require.Equal(t, drill.Passed, r.Verdict, "%+v", r.Checks)
		require.EqualValues(t, 42, r.Seed)
		require.Len(t, r.Arms, 1)
		require.Len(t, r.Files, 2)
		require.Regexp(t, `/rate-limit/\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{8}(-2)?\.txt$`, filepath.ToSlash(r.Files[0]))
		text, err := os.ReadFile(r.Files[0])
		require.NoError(t, err)
		require.Contains(t, string(text), "PASSED: rate-limit")
		require.Contains(t, string(text), "burst=20")
		var again drill.Report
		kept, err := os.ReadFile(r.Files[1])
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(kept, &again))
		require.Equal(t, r.Checks, again.Checks)
		require.NotEmpty(t, again.Environment.Postgres)
		require.NotEmpty(t, again.Environment.RabbitMQ)
		seen = append(seen, r.Files...)
	}
	slices.Sort(seen)
	require.Len(t, slices.Compact(seen), 4, "one report never replaces another")
	require.Empty(t, leftovers(t, o, reports[0].Run))
}

func TestAnInterruptCleansUp(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Reports = t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	o.Say = func(line string) {
		if strings.Contains(line, "after") {
			cancel()
		}
	}
	runner, err := drill.New(o)
	require.NoError(t, err)
	reports, err := runner.Run(ctx, []drill.Drill{named(t, "polite-client"), named(t, "retry-storm")})
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, reports, 1)
	require.Equal(t, drill.Interrupted, reports[0].Verdict)
	require.FileExists(t, reports[0].Files[0])
	require.Empty(t, leftovers(t, o, reports[0].Run))
}

// What a run left that was killed goes with the next one; what a living run has stays.
func TestLeftoversOfAKilledRunGo(t *testing.T) {
	t.Parallel()
	o := options(t)
	conn, err := pgx.Connect(t.Context(), o.DatabaseURL)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	dead, alive := testkit.Name("x")[2:], testkit.Name("x")[2:]
	for _, id := range []string{dead, alive} {
		_, err := conn.Exec(t.Context(), `CREATE SCHEMA surefoot_drill_`+id+`_1`)
		require.NoError(t, err)
		t.Cleanup(func() {
			_, _ = conn.Exec(context.WithoutCancel(t.Context()), `DROP SCHEMA IF EXISTS surefoot_drill_`+id+`_1`)
		})
	}
	_, err = conn.Exec(t.Context(), `SELECT pg_advisory_lock(hashtext('surefoot drill ' || $1))`, alive)
	require.NoError(t, err)
	runner, err := drill.New(o)
	require.NoError(t, err)
	_, err = runner.Run(t.Context(), nil)
	require.NoError(t, err)
	require.Empty(t, leftovers(t, o, dead))
	require.NotEmpty(t, leftovers(t, o, alive))
}

func TestSettingsAreHeldToTheirBounds(t *testing.T) {
	t.Parallel()
	storm := []drill.Drill{named(t, "retry-storm"), named(t, "timeout")}
	for text, want := range map[string]string{
		"clients=10":   "",
		"base=1s":      "",
		"seed=7":       "",
		"clients=1":    "use 2 to 50",
		"clients=many": "use 2 to 50",
		"base=10":      "use 50ms to 2s",
		"client=10":    "did you mean clients?",
		"nothing=1":    "there are",
		"seed=0":       "from 1",
	} {
		assigned, err := drill.ParseAssignments([]string{text})
		require.NoError(t, err)
		err = assigned[0].Check(storm)
		if want == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, want, text)
		}
	}
	for _, text := range []string{"clients", "=1", "clients="} {
		_, err := drill.ParseAssignments([]string{text})
		require.ErrorContains(t, err, "NAME=VALUE", text)
	}
}
