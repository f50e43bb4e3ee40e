// Package testkit gives tests real services, each test a corner of its own: a schema in PostgreSQL, a vhost in
// RabbitMQ, or a whole private server that may be stopped and killed.
//
// Services come from SUREFOOT_DATABASE_URL, SUREFOOT_AMQP_URL and SUREFOOT_MANAGEMENT_URL (or the same names
// without the prefix), else from the stack that scripts/stack has up. A service that is missing fails the test;
// only -short leaves out the tests that need one. Everything is removed when the test ends, and private servers
// also when the test process dies. All functions may be called from parallel tests, but only from a test's own
// goroutine.
//
// A package that uses it needs
//
//	func TestMain(m *testing.M) { testkit.Main(m) }
//
// or one of its kin.
package testkit

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs a package's tests, fails them when they leave goroutines behind, and exits.
func Main(m *testing.M) {
	// toxiproxy abandons a link whose toxic is removed while data wait in front of it: its reader and first stage
	// then block for ever. They are the proxy's, and hold nothing of the code under test.
	const link = "github.com/Shopify/toxiproxy/v2"
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction(link+"/toxics.(*NoopToxic).Pipe"),
		goleak.IgnoreAnyFunction(link+".(*ToxicLink).read"),
		goleak.Cleanup(func(code int) {
			builds.remove()
			os.Exit(code)
		}))
}

// MainOrChild is [Main] for a package whose tests start its test binary again as a process of their own: where the variable is set
// child runs instead, and its error, shown, makes the process fail.
func MainOrChild(m *testing.M, variable string, child func() error) {
	if os.Getenv(variable) == "" {
		Main(m)
		return
	}
	if err := child(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// MainWithExamples is [Main] for a package whose examples need services too: -short leaves them out.
func MainWithExamples(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		_ = flag.Set("test.skip", "^Example")
	}
	Main(m)
}

// needsServices leaves a test out under -short.
func needsServices(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs real services; left out by -short")
	}
}
