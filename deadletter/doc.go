// Package deadletter shows what is in dead-letter queues, brings it back, or drops it with a reason.
//
// Guarantees:
//
//   - Looking never changes what is in a dead-letter queue, nor its order (docs/guarantees.md G6). Letters are
//     read by a consumer and given back by closing its channel. Reading with basic.get would not do: ten
//     letters given back at once then return in another order (measured on RabbitMQ 3.10 and 4.0).
//   - Looks, redrives and discards of one queue exclude each other, by a lease in PostgreSQL.
//   - A redrive moves only what was in the queue when it began, oldest first. A letter leaves only after the
//     broker has confirmed its copy in the work queue, so that a crash at any point loses nothing; those
//     on their way are then there twice, under the same message id, which the inbox absorbs: at most
//     Options.Window, and as many whose acknowledgement the broker had not carried out. Running it again goes on
//     where it stopped.
//   - What is not chosen stays, in its order, up to about a million letters passed over at once; beyond that a run stops
//     and says so. Only a process that dies may leave the queue in another order, see walker.
//   - A discard writes each letter into the audit and, whole, into the archive before it lets go of it; Restore puts it back.
//   - Memory is bounded by the window and by what the broker has sent ahead, not by the queue's length.
//
// What becomes of a letter during a redrive:
//
//	received --does not match, repeater, other origin, refused--> held --channel closed--> back in its place
//	   | matches
//	   v
//	published --returned, nacked, no answer--> held; the run stops
//	   | confirmed and routed
//	   v
//	recorded in the audit --> acknowledged: gone from the dead-letter queue
package deadletter
