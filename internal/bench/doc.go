// Package bench measures relay, consumer, redrive, latency, Enqueue and the HTTP worker against what the services can do at best,
// and against other designs: `surefoot bench`. docs/benchmarks.md has the method and the figures.
//
// A figure is a ratio within one run. The arms that it compares take turns in every round, in an order that rotates, on
// fresh tables and a fresh quorum queue; the figure is the median of the rounds' ratios, with the lowest and the highest
// beside it. So what else the machine does weighs on all arms alike.
//
// An arm is a process: the surefoot binary itself, a hidden subcommand of it ([RunArm]), or scripts/peers. One eye times
// them all: from the first message that the queue shows to the moment when all is confirmed and settled. What
// came is then read back: every id once, each key in order. CPU is that of the process, of all of PostgreSQL's processes
// and of the broker's; the services' are known only when they run on this machine.
//
// A run works in schemas and queues whose names begin with its namespace, makes them anew, and drops them at its end, also
// when it is interrupted. Nothing else is touched.
package bench
