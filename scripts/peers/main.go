// Command peers drains an outbox the way three well-known designs do, each as well tuned as its users could make it, so that Surefoot's relay can
// be compared with them: a textbook relay, River with a publishing worker, and watermill-sql forwarding to watermill-amqp. README.md has the protocol.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
