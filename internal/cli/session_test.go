package cli

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOperator(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		as, variable, user string
		want               string
	}{
		"user and host":           {"", "", "ann", "ann@box"},
		"variable":                {"", "release-bot", "ann", "release-bot"},
		"flag":                    {"bob", "release-bot", "ann", "bob"},
		"in any script":           {"Zoë 注", "", "ann", "Zoë 注"},
		"control characters":      {"bob\x1b[2J", "", "ann", ""},
		"line feed in a variable": {"", "bob\nroot", "ann", ""},
		"reordered":               {"\u202ebob", "", "ann", ""},
		"blank":                   {" ", "", "ann", ""},
		"too long":                {strings.Repeat("x", 201), "", "ann", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSession(Env{User: tt.user, Host: "box", Environ: []string{"SUREFOOT_OPERATOR=" + tt.variable}})
			s.as = tt.as
			got, err := s.operator()
			require.Equal(t, tt.want, got)
			if tt.want == "" {
				require.Equal(t, ExitUsage, exitCode(t.Context(), err))
			}
		})
	}
}

func TestProgressInALog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		p := newSession(Env{Stderr: &stderr}).progress("redriven")
		for n := range 100 {
			p.reach(n, 400)
		}
		require.Empty(t, stderr.String(), "a line for each message would drown the log")
		time.Sleep(newLine)
		p.reach(101, 400)
		p.reach(102, 400)
		p.end()
		require.Equal(t, "redriven 101 of 400 (25 %)\n", stderr.String(), "the count at the end is the command's to tell")
	})
}

func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		p := newSession(Env{Stderr: &stderr, StderrTTY: true}).progress("seen")
		p.reach(1, 0)
		time.Sleep(redraw)
		p.reach(2, 0)
		p.end()
		require.Equal(t, "\rseen 2\x1b[K\rseen 2\x1b[K\n", stderr.String())
	})
}

func TestColors(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		tty     bool
		environ []string
		want    bool
	}{
		"terminal":      {true, nil, true},
		"no terminal":   {false, nil, false},
		"NO_COLOR":      {true, []string{"NO_COLOR=1"}, false},
		"empty":         {true, []string{"NO_COLOR="}, true},
		"dumb terminal": {true, []string{"TERM=dumb"}, false},
	} {
		e := Env{StderrTTY: tt.tty, Environ: tt.environ}
		require.Equal(t, tt.want, e.color(), name)
	}
}

func TestLinesOfTheDemoInALog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stderr bytes.Buffer
		tell := newSession(Env{Stderr: &stderr}).everySoOften()
		for _, line := range []string{"1 of 2", "1 of 2", "2 of 2"} {
			time.Sleep(newLine)
			tell(line)
		}
		require.Equal(t, "            1 of 2\n            2 of 2\n", stderr.String())
	})
}
