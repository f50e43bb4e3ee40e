package cli

import (
	"io"
	"slices"
	"strings"
)

// Env is everything outside of this process that a command may touch, so that tests can give it their own.
type Env struct {
	// Stdin answers prompts and is read by commands that take input. Required.
	Stdin io.Reader
	// Stdout takes data. Required.
	Stdout io.Writer
	// Stderr takes everything else. Required.
	Stderr io.Writer
	// StdinTTY, StdoutTTY and StderrTTY tell which of them are terminals.
	StdinTTY, StdoutTTY, StderrTTY bool
	// Environ is the environment as NAME=value. Default: empty.
	Environ []string
	// ReadFile reads the configuration, like os.ReadFile. Required.
	ReadFile func(path string) ([]byte, error)
	// User and Host name who works where, for the audit and for connections.
	User, Host string
	// Version and Commit are set by the linker. Default: what the Go toolchain recorded.
	Version, Commit string
}

// getenv returns a variable of the environment, "" when it is not set.
func (e *Env) getenv(name string) string {
	for _, entry := range slices.Backward(e.Environ) {
		if key, value, _ := strings.Cut(entry, "="); key == name {
			return value
		}
	}
	return ""
}

// color tells whether stderr may have colours (https://no-color.org).
func (e *Env) color() bool {
	return e.StderrTTY && e.getenv("NO_COLOR") == "" && e.getenv("TERM") != "dumb"
}
