// Package policy guards the calls to one dependency, so that its failure stays its own:
//
//	inventory, err := policy.New(policy.Options{Name: "inventory"})
//	...
//	err = inventory.Do(ctx, policy.Call{Idempotent: true}, func(ctx context.Context) error { return reserve(ctx, order) })
//
// Each call goes, from outside in, through
//
//	bulkhead -> circuit breaker -> retry -> timeout of an attempt -> the function
//
// Guarantees:
//   - No more than Active calls hold a place, no tenant more than its share, and a place is never lost: not by a panic, a
//     cancellation or a timeout. Tenants that wait are served in turn.
//   - A call never takes longer than the smaller of its settings' deadline and what its context has left, as long as the function
//     obeys its context. Waits never pass it, and no attempt starts with less than 25 ms left.
//   - Only failures that pass, of calls that are idempotent, are tried again; a 500 once. Retry-After is the least wait.
//   - While the circuit is open nothing is called. After that at most Probes calls run until it is decided.
//   - A deadline that passed, a caller who cancelled and a shutdown are three different errors, and what a call may have done is
//     told: [Error.Effect].
//
// # States of a circuit
//
//	closed --(Failures within Window, or in a row)--> open --(Open has passed, at the next call)--> half-open
//	   ^                                               ^                                               |
//	   |                                               '--------------(a probe fails)------------------|
//	   '--------------------------------------(Probes succeeded)---------------------------------------'
//
// A call counts when it ends, and only in the state in which it began. Answers (404, a declined card: class permanent) are
// healthy, and so is a deadlock. A cancelled call and one that a tiny budget cut short prove nothing; a probe that proved nothing
// gives its turn to another call. The window moves in tenths of its length.
//
// The counting is failsafe-go's. Bulkhead, retries and timeouts are not: its bulkhead knows neither queue nor tenants, and its
// retries and timeouts know no budget that shrinks from attempt to attempt.
//
// In a queue's handler an open circuit is an error of the class unavailable, and so is a probe that failed: the consumer holds its
// messages, counts no attempt, and lets one message at a time find out whether the dependency is back.
package policy
