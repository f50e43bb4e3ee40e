package testkit

import (
	"context"
	"fmt"
	"slices"
	"testing"
)

// Example stands in for the test that a runnable example does not have. Call done at its end; a failure
// panics, which fails the example. Under -short, leave examples that need services out in TestMain:
//
//	flag.Parse()
//	if testing.Short() { flag.Set("test.skip", "^Example") }
func Example() (tb testing.TB, done func()) {
	ctx, cancel := context.WithCancel(context.Background())
	e := &example{ctx: ctx}
	return e, func() {
		cancel()
		for _, cleanup := range slices.Backward(e.cleanups) {
			cleanup()
		}
	}
}

// example embeds a nil TB for the methods that nothing here uses.
type example struct {
	testing.TB
	ctx      context.Context
	cleanups []func()
}

func (e *example) Name() string              { return "Example" }
func (e *example) Helper()                   {}
func (e *example) Context() context.Context  { return e.ctx }
func (e *example) Cleanup(f func())          { e.cleanups = append(e.cleanups, f) }
func (e *example) Logf(string, ...any)       {}
func (e *example) Errorf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (e *example) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (e *example) FailNow()                  { panic("example failed") }
