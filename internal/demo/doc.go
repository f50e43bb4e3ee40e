// Package demo runs the whole way of an event on real services, in one process and in under a minute: the sample
// orders of examples/shop go through outbox, relay, queues and services; payments fail, a message is malformed, the
// watchdog ends what is stuck, dead letters are redriven; and then every order and every event is accounted for.
//
// Guarantees:
//   - It touches nothing but its own: the schemas whose names begin with Options.Prefix, and in the vhost
//     Options.Vhost the queues and exchanges of the shop and the queue [Witness]. These it drops and makes anew at each run.
//   - The account relies on nothing that the parts under test say of themselves: what was enqueued is written
//     down by a trigger on the outbox, what was published by a queue that is bound to everything, what was handled is read
//     from the inbox, and what is dead lies in the dead-letter queues.
//   - Whatever is left over by that account is a violation, and so is an order that ends otherwise than the
//     sample says.
//
// A run goes through
//
//	prepare -> submit -> settle -> redrive -> watchdog -> redrive what came too late -> account
package demo
