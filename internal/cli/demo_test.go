package cli

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/demo"
)

// demoEnv is a machine whose stack, if any, has written its URL into .stack/env.
func demoEnv(stack string, environ ...string) Env {
	return Env{
		Stdin: strings.NewReader(""), Stdout: new(strings.Builder), Stderr: new(strings.Builder), User: "ann", Host: "box", Environ: environ,
		ReadFile: func(path string) ([]byte, error) {
			if path == ".stack/env" && stack != "" {
				return []byte("export SUREFOOT_DATABASE_URL='postgres://x'\nexport SUREFOOT_AMQP_URL='" + stack + "'\n"), nil
			}
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		},
	}
}

func TestDemoSaysWhatToDo(t *testing.T) {
	t.Parallel()
	away := []string{"SUREFOOT_DATABASE_URL=postgres://ann:hunter2@127.0.0.1:1/d", "SUREFOOT_AMQP_URL=amqp://ann:hunter2@127.0.0.1:1/"}
	for name, tt := range map[string]struct {
		environ []string
		args    []string
		code    int
		want    string
	}{
		"no stack":     {nil, []string{"demo"}, ExitUsage, "hint: `make demo` starts a local stack"},
		"nobody there": {away, []string{"demo"}, ExitUnreachable, "`make demo` starts a local stack"},
		"names":        {away, []string{"demo", "-o", "name"}, ExitUsage, "use table, json or jsonl"},
		"no time":      {away, []string{"demo", "--timeout", "0s"}, ExitUsage, "--timeout must be more than 0"},
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

func TestDemoShowsOnlyTheLocalStacksPassword(t *testing.T) {
	t.Parallel()
	const given = "amqp://ann:hunter2@127.0.0.1:5672/"
	for name, tt := range map[string]struct {
		stack string
		shown bool
	}{
		"the local stack":       {given, true},
		"no stack":              {"", false},
		"another stack":         {"amqp://ann:other@127.0.0.1:5672/", false},
		"an URL that begins so": {given + "vhost", false},
		"an URL that ends so":   {"x" + given, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := demoEnv(tt.stack, "SUREFOOT_AMQP_URL="+given, "SUREFOOT_MANAGEMENT_URL=http://ann:hunter2@127.0.0.1:15672/")
			s := newSession(env)
			newRoot(s)
			c, err := s.config(need{amqp: true})
			require.NoError(t, err)
			text := s.whatToLookAt(c)
			require.Equal(t, tt.shown, strings.Contains(text, "hunter2"), text)
			require.Contains(t, text, "http://127.0.0.1:15672/#/queues?vhost=surefoot-demo")
			require.Contains(t, text, "ann")
			require.Equal(t, tt.shown, strings.Contains(text, `"${SUREFOOT_AMQP_URL}surefoot-demo"`), text)
		})
	}
}

func TestDemoFailsWhenSomethingIsUnaccountedFor(t *testing.T) {
	t.Parallel()
	env := demoEnv("")
	s := newSession(env)
	a := &demo.Account{
		Orders:     []demo.OrderLine{{Status: "CONFIRMED", Orders: 2, Charged: 2, KeptCents: 1205}, {Status: "CANCELLED", Reason: "R", Orders: 1}},
		Events:     []demo.EventLine{{Type: "order.created", Enqueued: 3, Published: 3, Due: 3, Handled: 2, Lost: 1}},
		Violations: []string{"event \x1b[2J is lost"},
	}
	require.Equal(t, ExitFailed, exitCode(t.Context(), s.showAccount(a)))
	out := env.Stdout.(*strings.Builder).String()
	require.Regexp(t, `(?m)^all +- +3 +2 +12\.05$`, out)
	require.Regexp(t, `(?m)^order\.created +3 +3 +0 +3 +2 +0 +1$`, out)
	require.Contains(t, out, `violations: 1`+"\n"+`  event \x1b[2J is lost`)
	a.Violations = nil
	require.NoError(t, s.showAccount(a))
}
