// Package topology describes the queues and exchanges that Surefoot works with, makes them, and checks that they lose nothing.
//
// For each queue q on exchange x there are
//
//	x          topic   events, bound to q by its bindings
//	x.dlx      direct  q -> q.dlq, for what the broker dead-letters
//	x.retry    direct  q -> q, for what comes back from a retry queue
//	q                  quorum, dead-letters to x.dlx, delivery limit 20
//	q.retry            quorum, fixed TTL, dead-letters to x.retry; with several delays q.retry.30s, q.retry.5m and so on
//	q.dlq              quorum, delivery limit 1000000, for looking at a message counts as a delivery
//
// Work and retry queues dead-letter at least once, which needs overflow reject-publish too: the broker keeps a message until its
// new queue has confirmed it. A work queue never dead-letters to a retry queue: a message that then expires back into the work queue would be
// dropped by the broker's cycle rule; the consumer itself publishes to the retry queue.
//
// Guarantees: [Topology.Plan] and [Topology.Verify] change nothing. [Topology.Apply] is idempotent, never deletes a queue that holds messages or has
// consumers, and never removes a binding or a queue unless asked to prune.
package topology
