// Package drill runs failures for real and checks that each pattern does what it is for.
//
// A drill is one scenario. Each of its arms plays the same failure, with the pattern off (before) and on (after), and observes
// figures; the checks of an arm compare its figures with what must be. A drill passes when every check of every arm that ran holds.
//
// Guarantees:
//   - It is the product that is drilled: its packages, its binary as processes, real PostgreSQL and RabbitMQ, real TCP.
//   - Each arm has schemas and a vhost of its own, named after its run. They go when the arm ends, also after a failure or an
//     interrupt; those of a run that was killed are found by the next one, for nobody holds their lock any more.
//   - Nothing else in the services is touched. A drill that stops a service runs alone, and only on the local stack's.
//   - Checks know nothing of what the arm did but its figures, so that the tests can hold one arm's figures against the checks
//     of another: what the pattern is for must then be missing.
//   - No money moves: providers are simulators, and what drills send over HTTP reaches this machine only.
//   - A report is written once and never overwritten.
package drill
