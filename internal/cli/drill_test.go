package cli

import (
	"encoding/json"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/drill"
)

func TestDrillSaysWhatToDo(t *testing.T) {
	t.Parallel()
	away := []string{"SUREFOOT_DATABASE_URL=postgres://ann:hunter2@127.0.0.1:1/d", "SUREFOOT_AMQP_URL=amqp://ann:hunter2@127.0.0.1:1/"}
	for name, tt := range map[string]struct {
		environ []string
		args    []string
		code    int
		want    string
	}{
		"no verb":         {away, []string{"drill"}, ExitUsage, "drill needs one of: ls, run"},
		"no name":         {away, []string{"drill", "run"}, ExitUsage, "hint: surefoot drill ls lists them"},
		"names and all":   {away, []string{"drill", "run", "--all", "timeout"}, ExitUsage, "--all runs every drill"},
		"unknown name":    {away, []string{"drill", "run", "time-out"}, ExitUsage, "did you mean timeout?"},
		"unknown arm":     {away, []string{"drill", "run", "timeout", "--arm", "afterwards"}, ExitUsage, "hint: there is after, before"},
		"unknown setting": {away, []string{"drill", "run", "timeout", "--set", "calls=3", "--set", "palces=3"}, ExitUsage, "did you mean places?"},
		"no setting":      {away, []string{"drill", "run", "timeout", "--set", "calls"}, ExitUsage, "use NAME=VALUE"},
		"out of bounds":   {away, []string{"drill", "run", "timeout", "--set", "calls=0"}, ExitUsage, "use 2 to 50"},
		"names":           {away, []string{"drill", "run", "timeout", "-o", "name"}, ExitUsage, "use table, json or jsonl"},
		"no stack":        {nil, []string{"drill", "run", "timeout"}, ExitUsage, "`make drills` starts a local stack"},
		"nobody there":    {away, []string{"drill", "run", "timeout"}, ExitUnreachable, "`make drills` starts a local stack"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := demoEnv("", tt.environ...)
			require.Equal(t, tt.code, Main(t.Context(), tt.args, env))
			shown := env.Stderr.(*strings.Builder).String()
			require.Contains(t, shown, tt.want)
			require.NotContains(t, shown, "hunter2")
			require.Empty(t, env.Stdout.(*strings.Builder).String())
		})
	}
}

func TestDrillsAreListed(t *testing.T) {
	t.Parallel()
	env := demoEnv("")
	require.Equal(t, ExitDone, Main(t.Context(), []string{"drill", "ls", "-o", "json"}, env))
	var listed []drill.Drill
	require.NoError(t, json.Unmarshal([]byte(env.Stdout.(*strings.Builder).String()), &listed))
	require.Len(t, listed, len(drill.All()))
	env = demoEnv("")
	require.Equal(t, ExitDone, Main(t.Context(), []string{"drill", "ls"}, env))
	require.Contains(t, env.Stdout.(*strings.Builder).String(), "stops a service")
}

// The verdicts of all drills together are one exit code.
func TestDrillVerdicts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		verdicts []drill.Verdict
		code     int
	}{
		"all passed":        {[]drill.Verdict{drill.Passed, drill.Passed}, ExitDone},
		"one failed":        {[]drill.Verdict{drill.Passed, drill.Failed, drill.Refused}, ExitFailed},
		"one refused":       {[]drill.Verdict{drill.Passed, drill.Refused}, ExitPartly},
		"none was there":    {nil, ExitDone},
		"failed is not all": {[]drill.Verdict{drill.Failed}, ExitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var reports []*drill.Report
			for _, v := range tt.verdicts {
				reports = append(reports, &drill.Report{Drill: "d", Verdict: v})
			}
			s := newSession(demoEnv(""))
			require.Equal(t, tt.code, exitCode(t.Context(), s.drillVerdict(reports)))
		})
	}
}

// The stack is the one of the working directory, or of SUREFOOT_STACK_DIR; without scripts/stack there is none.
func TestDrillFindsTheLocalStack(t *testing.T) {
	t.Parallel()
	env := demoEnv("amqp://ann:hunter2@127.0.0.1:5672/")
	require.Empty(t, newSession(env).localStack())
	read := env.ReadFile
	env.ReadFile = func(path string) ([]byte, error) {
		switch {
		case path == stackScript:
			return nil, nil
		case strings.HasSuffix(path, "/elsewhere/env"):
			return []byte("export SUREFOOT_AMQP_URL='amqp://there/'\n"), nil
		case strings.HasSuffix(path, "/.stack/env"):
			return read(".stack/env")
		}
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	found := newSession(env).localStack()
	require.True(t, strings.HasSuffix(found.Script, "/scripts/stack"), found.Script)
	require.True(t, strings.HasSuffix(found.Dir, "/.stack"), found.Dir)
	require.Contains(t, found.Env, "amqp://ann:hunter2@127.0.0.1:5672/")
	env.Environ = []string{"SUREFOOT_STACK_DIR=/elsewhere"}
	require.Contains(t, newSession(env).localStack().Env, "amqp://there/")
}
