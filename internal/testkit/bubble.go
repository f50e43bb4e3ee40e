package testkit

import (
	"context"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// Bubble checks a property with virtual time. rapid stops a failing check by a panic, which must leave the bubble first.
func Bubble(t *testing.T, property func(ctx context.Context, t *rapid.T)) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		var failed any
		synctest.Test(t, func(t *testing.T) {
			defer func() { failed = recover() }()
			property(t.Context(), rt)
		})
		if failed != nil {
			panic(failed)
		}
	})
}
