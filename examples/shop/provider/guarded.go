package provider

import (
	"context"
	"errors"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// Guarded is a provider behind a policy: its places, its circuit, and several attempts with the same key. After an attempt whose
// outcome is not known it asks what became of the key before it charges again. It is for callers that have no other layer that
// tries again, as a queue is. It is safe for concurrent use.
type Guarded struct {
	client *Client
	policy *policy.Policy
}

// Guard returns the client's provider behind a policy.
func Guard(client *Client, p *policy.Policy) *Guarded { return &Guarded{client, p} }

// Charge is [Client.Charge].
func (g *Guarded) Charge(ctx context.Context, key string, req ChargeRequest) (Charge, error) {
	doubt := false
	return do(ctx, g, policy.Call{Idempotent: true, Tenant: req.Tenant}, func(ctx context.Context) (Charge, error) {
		if doubt {
			if charge, err := g.client.Check(ctx, key); !errors.Is(err, ErrUnknownKey) {
				return charge, err
			}
		}
		charge, err := g.client.Charge(ctx, key, req)
		_, uncertain := errors.AsType[*UncertainError](err)
		doubt = doubt || uncertain
		return charge, err
	})
}

// Reverse is [Client.Reverse].
func (g *Guarded) Reverse(ctx context.Context, key string) (Reversal, error) {
	return do(ctx, g, policy.Call{Idempotent: true, Recovery: true}, func(ctx context.Context) (Reversal, error) { return g.client.Reverse(ctx, key) })
}

// Check is [Client.Check].
func (g *Guarded) Check(ctx context.Context, key string) (Charge, error) {
	return do(ctx, g, policy.Call{Idempotent: true, Recovery: true}, func(ctx context.Context) (Charge, error) { return g.client.Check(ctx, key) })
}

func do[T any](ctx context.Context, g *Guarded, c policy.Call, call func(ctx context.Context) (T, error)) (answer T, err error) {
	err = g.policy.Do(ctx, c, func(ctx context.Context) error {
		answer, err = call(ctx)
		if errors.Is(err, ErrDeclined) || errors.Is(err, ErrReversed) || errors.Is(err, ErrUnknownKey) {
			return resilience.Permanent(err) // an answer
		}
		return err
	})
	return answer, err
}
