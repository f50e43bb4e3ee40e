package docs_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// patience is for services that start, and for what happens in the background, on a loaded machine.
const patience = 2 * time.Minute

// newcomer is somebody who follows a document on a machine where nothing runs.
type newcomer struct {
	dir, stack string
	env        []string
	prelude    []string // lines that change the shell
}

func newNewcomer(t *testing.T) *newcomer {
	t.Helper()
	root, err := filepath.Abs("..")
	require.NoError(t, err)
	n := &newcomer{dir: t.TempDir()}
	n.stack, err = os.MkdirTemp("", "surefoot-newcomer-") //nolint:usetesting // t.TempDir is closed to the servers' users
	require.NoError(t, err)
	require.NoError(t, os.Chmod(n.stack, 0o755))
	require.NoError(t, os.Symlink(filepath.Join(root, "scripts"), filepath.Join(n.dir, "scripts")))
	require.NoError(t, os.Mkdir(filepath.Join(n.dir, "bin"), 0o755))
	require.NoError(t, os.Symlink(testkit.Binary(t), filepath.Join(n.dir, "bin", "surefoot"))) // the document's make build
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "SUREFOOT_") && !strings.Contains(entry, "_URL=") {
			n.env = append(n.env, entry)
		}
	}
	n.env = append(n.env, "SUREFOOT_STACK_DIR="+n.stack, "SUREFOOT_STACK_PARENT="+strconv.Itoa(os.Getpid()),
		"SUREFOOT_HTTP_LISTEN=127.0.0.1:0", "SUREFOOT_CONSOLE_LISTEN=127.0.0.1:0") // others on this machine have the usual ports
	t.Cleanup(func() {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(n.dir, "scripts", "stack"), "reset")
		cmd.Env = n.env
		_ = cmd.Run()
		_ = os.RemoveAll(n.stack)
	})
	return n
}

// shell runs one line of the document in the second terminal.
func (n *newcomer) shell(t *testing.T, line string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", strings.Join(append(n.prelude, line), "\n"))
	cmd.Dir, cmd.Env = n.dir, n.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// follow runs a line and looks for what the document shows of its output. What happens in the background may take a moment: commands that
// only look are tried again.
func (n *newcomer) follow(t *testing.T, line string, shown *regexp.Regexp) {
	t.Helper()
	looks := regexp.MustCompile(`^bin/surefoot (dlq (ls|show|groups|runs ls)|audit ls|outbox ls)`).MatchString(line)
	deadline := time.Now().Add(patience)
	for {
		out, err := n.shell(t, line)
		if err == nil && shown.MatchString(out) {
			return
		}
		if !looks || time.Now().After(deadline) {
			require.NoError(t, err, "%s\n%s", line, out)
			require.Regexp(t, shown, out, line)
		}
	}
}

// dev starts the first terminal, and waits until it says that all is up. When ended is closed, the process has ended.
func (n *newcomer) dev(t *testing.T) (cmd *exec.Cmd, said *testkit.Buffer, ended chan struct{}) {
	t.Helper()
	cmd, said, ended = exec.CommandContext(t.Context(), "bin/surefoot", "dev"), new(testkit.Buffer), make(chan struct{})
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = n.dir, n.env, said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	go func() { _ = cmd.Wait(); close(ended) }()
	testkit.Eventually(t, patience, "surefoot dev is up", func() bool {
		select {
		case <-ended:
			require.FailNow(t, "surefoot dev ended", "%s", said)
		default:
		}
		return strings.Contains(said.String(), "Ctrl-C stops everything")
	})
	return cmd, said, ended
}

// docs/first-ten-minutes.md is followed command by command, from a machine on which nothing runs until Ctrl-C.
func TestTheFirstTenMinutes(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a stack")
	}
	text, err := os.ReadFile("first-ten-minutes.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```(sh|text)\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	require.Equal(t, "make build\nbin/surefoot dev\n", blocks[0][2], "the first terminal")
	n := newNewcomer(t)
	dev, said, ended := n.dev(t)
	commands := 0
	for i, block := range blocks[1:] {
		if block[1] == "text" {
			continue
		}
		lines := strings.Split(strings.TrimSpace(block[2]), "\n")
		for j, line := range lines {
			shown := regexp.MustCompile("")
			if next := i + 2; j == len(lines)-1 && next < len(blocks) && blocks[next][1] == "text" {
				shown = pattern(blocks[next][2])
			}
			n.follow(t, line, shown)
			if strings.HasPrefix(line, "eval ") {
				n.prelude = append(n.prelude, line)
			}
			commands++
		}
	}
	require.Greater(t, commands, 10)
	testkit.Eventually(t, patience, "all three messages are handled", func() bool { return strings.Count(said.String(), "INF handled") == 3 })

	require.NoError(t, dev.Process.Signal(syscall.SIGINT))
	select {
	case <-ended:
	case <-time.After(patience):
		require.FailNow(t, "surefoot dev does not end", "%s", said)
	}
	require.Zero(t, dev.ProcessState.ExitCode(), said)
	require.Contains(t, said.String(), "the local stack is stopped; its data stay")
	out, err := n.shell(t, "scripts/stack status")
	require.Error(t, err, "nothing runs any more")
	require.Contains(t, out, "db down\nbroker down")
	require.FileExists(t, filepath.Join(n.stack, "env"), "data stay")
}

// pattern makes a regular expression of what a document shows: its lines in this order, spaces of any width, ... for anything.
func pattern(shown string) *regexp.Regexp {
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSpace(shown), "\n") {
		words := strings.Fields(line)
		for i, word := range words {
			if words[i] = regexp.QuoteMeta(word); word == "..." {
				words[i] = ".*"
			}
		}
		lines = append(lines, strings.Join(words, `\s+`))
	}
	return regexp.MustCompile("(?s)" + strings.Join(lines, ".*"))
}
