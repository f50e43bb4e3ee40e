// Package fallback answers for a dependency that cannot, by what a wrong answer would cost:
//
//   - A read whose staleness harms nobody (a catalog, a recommendation) is answered from a [Cache], marked as stale with its age, or
//     empty and marked as partial.
//   - Money is never guessed: [PendingPayment] says that the outcome is not known yet, how to learn it, and how to ask again without a
//     second charge. It is no success: nothing that follows a payment may start from it.
//   - Everything else has no fallback: the typed error of package policy is the answer.
//
// An answer of the dependency (404, a declined card) is never replaced.
package fallback
