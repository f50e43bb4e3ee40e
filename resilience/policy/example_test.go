package policy_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// Three lines put a dependency under a policy.
func Example() {
	inventory, err := policy.New(policy.Options{Name: "inventory"})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = inventory.Do(context.Background(), policy.Call{Idempotent: true}, func(_ context.Context) error {
		return nil // reserve(ctx, order)
	})
	fmt.Println(err, inventory.State())
	// Output: <nil> closed
}

// A failed call says what it means for the caller of this service, and what it may have done.
func ExampleError() {
	payments, err := policy.New(policy.Options{Name: "payments", Settings: resilience.Settings{Timeout: 50 * time.Millisecond, Retry: resilience.Retry{Attempts: 1}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = payments.Do(context.Background(), policy.Call{}, func(ctx context.Context) error {
		<-ctx.Done() // the provider does not answer
		return ctx.Err()
	})
	if failed, ok := errors.AsType[*policy.Error](err); ok {
		fmt.Println(failed.Code(), failed.Code().Status(), failed.Effect)
	}
	fmt.Println(errors.Is(err, resilience.ErrTimeout), errors.Is(err, resilience.ErrDeadline))
	// Output:
	// DEPENDENCY_UNAVAILABLE 503 unknown
	// true false
}

// Domain errors are answers: they are marked, so that they neither are retried nor open the circuit.
func ExamplePolicy_Do() {
	errSoldOut := errors.New("sold out")
	inventory, err := policy.New(policy.Options{Name: "inventory"})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = inventory.Do(context.Background(), policy.Call{Idempotent: true, Tenant: "shop-7"}, func(context.Context) error {
		return resilience.Permanent(errSoldOut)
	})
	fmt.Println(err, errors.Is(err, errSoldOut))
	// Output: call inventory: sold out true
}
