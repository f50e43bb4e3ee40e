package testkit

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Python returns the program of Python 3. Where there is none the test is skipped.
func Python(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 in PATH: skipped, so nothing is known of the workers in Python")
	}
	return path
}

// PythonServer runs a Python program that prints a line ending in its URL when it listens, until the test's end.
func PythonServer(t testing.TB, environ []string, args ...string) (url string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), Python(t), args...)
	cmd.Env = environ
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "the program has not said where it listens")
	return line[strings.LastIndexByte(strings.TrimSpace(line), ' ')+1 : len(line)-1]
}
