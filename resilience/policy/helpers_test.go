package policy_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var (
	errRefused  = &resilience.StatusError{Status: 503}
	errNotFound = &resilience.StatusError{Status: 404}
	errInternal = &resilience.StatusError{Status: 500}
	errPlain    = errors.New("odd")
)

func newPolicy(t require.TestingT, s resilience.Settings) *policy.Policy {
	p, err := policy.New(policy.Options{Name: "inventory", Settings: s})
	require.NoError(t, err)
	return p
}

// calls makes n calls with a fixed outcome.
func calls(ctx context.Context, p *policy.Policy, n int, err error) {
	for range n {
		_ = p.Do(ctx, policy.Call{}, func(context.Context) error { return err })
	}
}

func failureOf(t require.TestingT, err error) *policy.Error {
	e, ok := errors.AsType[*policy.Error](err)
	require.True(t, ok, "%v is no *policy.Error", err)
	return e
}

// hang waits for the end of its context, as a well-behaved call to a dependency that does not answer.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }
