// Package dlqindex keeps the index of the dead letters in PostgreSQL: which messages lie in which dead-letter queue, why,
// and since when. Consumers add to it, package deadletter brings it into line with the queues and reads it.
//
// Guarantees:
//   - The queue is the truth. A row says what was seen; no row decides whether a message exists, and a message without a
//     row is no less there.
//   - Writing is idempotent: what was written once and is written again, after a lost answer or late, changes nothing.
//   - Every text and time that comes from a message is bounded and storable.
//
// A message's row:
//
//	(none) --died, seen--> live --redriven, discarded, edited--> gone --retention--> (none)
//	                        ^ |                                    |
//	                        | '--a whole scan did not see it-------+ (vanished)
//	                        '-----------died again, seen again-----'
package dlqindex
