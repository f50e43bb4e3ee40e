// Package relay publishes committed outbox rows to RabbitMQ, in order per key, from any number of replicas.
//
// Guarantees (docs/guarantees.md G1, G2, G9, G10):
//   - a committed row is published at least once and leaves the outbox only after the broker has confirmed and
//     routed it; an uncommitted row is never seen;
//   - rows of one key are published in the order of their commits, also across failures and takeovers, when
//     their writers serialise before they enqueue;
//   - what concerns the broker or a route waits, for ever, and burns nothing; a bad row is tried a few times and
//     then parked, and holds back only the later rows of its own key;
//   - memory is bounded whatever the backlog.
//
// The rows are the truth: a row is in the table exactly as long as it is not settled. What a relay remembers
// (per shard a cursor and the snapshot of the last read) makes reading fast and decides nothing; it is dropped
// at every doubt, and reading starts from the first row. Then some rows may be sent again, which the consumers'
// inbox absorbs, and none is lost. And whoever deletes a row decides: one that waited longer than a lease is looked up
// before it is published, and the sweep forgets what waits and is gone.
//
// # Who does what
//
//	keeper    heartbeat, leases, even spread of the shards; the only one that judges ownership
//	link      one broker connection; a shard publishes, and holds its fence, on one link
//	shard     one goroutine per owned shard, the only one that touches its lanes (type lanes)
//	reader    joins the reads that the shards ask for into one statement; polls, sleeps, wakes
//	settler   joins the confirmed rows of all shards into one statement
//	slow lane what may take long or is rare: lagging keys, the sweep, parked rows, requests, janitor, figures
//
// # A row
//
//	read --> waiting --> ready --> flying --confirmed--> settling --> gone
//	           ^  |                  |
//	           |  |                  |-- returned, nacked, late: its route is stopped; waits --.
//	           |  |                  |-- connection lost: outcome unknown, published again ----|
//	           '--|------------------+---------------------------------------------------------'
//	              |                  '-- bad --> parked: retry --N attempts--> dead
//	              '-- no room, or its key is blocked: its key lags; read again later by the second lane
package relay
