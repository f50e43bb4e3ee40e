// Package rabbit is what Surefoot needs of RabbitMQ that the client library leaves to its users: connections whose every
// operation ends, publishing with exactly one outcome per message, consuming whose acks cannot hit another message, and one
// reconnect loop.
//
// Guarantees:
//   - Nothing hangs. Every write has a deadline, every RPC a limit; when one passes, the connection is aborted, for the
//     state of a half-finished RPC cannot be known. Close is bounded even when the broker stopped reading.
//   - An accepted publish gets exactly one [Result]: confirmed and routed, returned, or unknown. Unknown is neither success nor failure.
//   - A [Subscription] is one generation of one channel. Acks for an ended generation are dropped, never sent elsewhere.
//   - A password never appears in an error or a log line.
//
// A connection goes through these states, and never back:
//
//	Dial --ok--> open <--blocked/unblocked--> blocked
//	              |                              |
//	              '---- Close, abort, loss ------'--> done (Err says why)
//
// [Supervise] turns that into a lasting session: dial, run, back off, again. The client library's own recovery stays off: with it, an
// ack for a delivery from before the reconnect hit a different message, which was lost (measured).
package rabbit
