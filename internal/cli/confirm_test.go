package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfirm(t *testing.T) {
	t.Parallel()
	const asked = "redrive 50 messages of orders.saga.dlq? [y/N] "
	for name, tt := range map[string]struct {
		count      int
		yes        bool
		stdin      string
		in, errOut bool // are they terminals?
		want       int
		stderr     string
	}{
		"yes":                     {50, false, "y\n", true, true, 0, asked},
		"yes in full":             {50, false, " YES \n", true, true, 0, asked},
		"no":                      {50, false, "n\n", true, true, 2, asked},
		"just return":             {50, false, "\n", true, true, 2, asked},
		"something else":          {50, false, "yesterday\n", true, true, 2, asked},
		"end of input":            {50, false, "", true, true, 2, asked},
		"yes without a line feed": {50, false, "y", true, true, 0, asked},
		"--yes":                   {50, true, "", true, true, 0, ""},
		"--yes without terminal":  {50, true, "", false, false, 0, ""},
		"no terminal":             {50, false, "y\n", false, false, 2, ""},
		"stdin is a pipe":         {50, false, "y\n", false, true, 2, ""},
		"nobody sees the prompt":  {50, false, "y\n", true, false, 2, ""},
		"nothing to do":           {0, false, "", false, false, 0, ""},
		"one":                     {1, false, "y\n", true, true, 0, "redrive 1 message of orders.saga.dlq? [y/N] "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			s := newSession(Env{Stdin: strings.NewReader(tt.stdin), Stderr: &stderr, StdinTTY: tt.in, StderrTTY: tt.errOut})
			s.yes = tt.yes
			err := s.confirm(t.Context(), question{Verb: "redrive", Count: tt.count, Thing: "message", Target: "orders.saga.dlq"})
			require.Equal(t, tt.want, exitCode(t.Context(), err))
			require.Equal(t, tt.stderr, stderr.String())
			if tt.want != 0 && (!tt.in || !tt.errOut) {
				require.ErrorContains(t, err, "redrive 50 messages of orders.saga.dlq?")
				var chosen *exitError
				require.ErrorAs(t, err, &chosen)
				require.Contains(t, chosen.hint, "--yes")
			}
		})
	}
}

func TestConfirmEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	in, out := io.Pipe()
	defer out.Close() // lets the read that is left behind end
	var stderr bytes.Buffer
	s := newSession(Env{Stdin: in, Stderr: &stderr, StdinTTY: true, StderrTTY: true})
	cancel()
	err := s.confirm(ctx, question{Verb: "discard", Count: 2, Thing: "message"})
	require.Equal(t, ExitInterrupted, exitCode(ctx, err))
}

func TestQuestionIsEscaped(t *testing.T) {
	t.Parallel()
	require.Equal(t, `discard 2 messages of a\x1b[2Jb`, question{"discard", 2, "message", "a\x1b[2Jb"}.String())
}
