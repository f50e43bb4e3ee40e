// Package crash is the crash harness: the real binary and a real worker, killed with SIGKILL at every named
// step and at random, under mixed load, with two of each role; then every message is accounted for.
//
// It is built with the tag "crash", because it takes minutes: `make crash` kills at each point of internal/fault once and 20
// times at random; `make crash ROUNDS=500` is the long run, `make faults` hurts the services instead. `make failover`, `make cluster` and
// `make soak` are the long faults of the services: see their tests. The seed is printed and can be given with -seed.
//
// What it checks, once all is quiet:
//   - nothing lost: each committed message has its effect, none of a rolled-back transaction has one;
//   - effects once: no message has two, and what a handler emitted exists once;
//   - order per key: the first publish of each message, as a queue bound to everything saw it, follows the
//     order of the commits;
//   - no innocent neighbour: only messages that fail by themselves were ever dead-lettered;
//   - each stuck order was cancelled once, with one event;
//   - redrives as runs: only what was chosen is moved, under one run, each key in its order, and left alone by others meanwhile;
//   - places: before what was broken is mended, every message has had its effect or is a dead letter, and none both.
package crash
