package app

import (
	"context"
	"sync"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// runPolicies writes down the states of circuits until the returned function is called, which waits for the last of it.
func runPolicies(ctx context.Context, logger zerolog.Logger, policies map[string]*policy.Policy) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	for _, guard := range policies {
		running.Go(func() {
			defer telemetry.FatalOnPanic(logger)
			_ = guard.Run(ctx) // always nil: it logs what it cannot write
		})
	}
	return func() {
		cancel()
		running.Wait()
	}
}
