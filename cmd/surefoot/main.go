// Command surefoot is the operators' binary: it runs the roles and repairs what needs repair.
package main

import (
	"context"
	"os"
	"os/signal"
	"os/user"
	"syscall"

	"golang.org/x/term"

	"github.com/surefoot-mq/surefoot/internal/cli"
)

// Set by the linker: -ldflags "-X main.version=v1.2.3 -X main.commit=abc".
var version, commit string

func main() {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-signals
		cancel()
		<-signals // a second one does not wait for the orderly stop; exiting at once is as safe as a crash
		os.Exit(cli.ExitInterrupted)
	}()
	os.Exit(cli.Main(ctx, os.Args[1:], environment()))
}

func environment() cli.Env {
	isTerminal := func(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
	env := cli.Env{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		StdinTTY: isTerminal(os.Stdin), StdoutTTY: isTerminal(os.Stdout), StderrTTY: isTerminal(os.Stderr),
		Environ: os.Environ(), ReadFile: os.ReadFile, User: "unknown", Host: "unknown",
		Version: version, Commit: commit,
	}
	if current, err := user.Current(); err == nil {
		env.User = current.Username
	}
	if host, err := os.Hostname(); err == nil {
		env.Host = host
	}
	return env
}
