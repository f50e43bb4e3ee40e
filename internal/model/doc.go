// Package model holds a small model of the relay's protocol, and a search through every state that it can reach.
// It has no code but its tests.
//
// The model is one shard, two relays, three rows of two keys, PostgreSQL and the broker: leases and epochs,
// the fence, reads with late rows and lagging keys, publishes, confirms, settling, parking and operators' requests,
// with everything that may go wrong in between, in every order. What is one atomic step in the model is one in
// PostgreSQL or in the broker; what takes time (a statement, a publish, an answer) takes two steps or more. Each action
// names the function or statement that it stands for (see actions), so that the two can be compared; a test holds
// these names to the code.
//
// What the search requires in every state and at every step:
//
//	G1  a row leaves the outbox, or the parked table, only after the broker has it or an operator discarded it; an
//	    uncommitted row is not published; and from every state, when nothing more goes wrong, every committed row
//	    can still be published or discarded (neither is it forgotten, nor its key blocked by nothing)
//	G2  no row is published for the first time while an earlier one of its key is not, nor discarded
//	    (under skip: unless that one was bad or nacked)
//	    no statement of an old epoch changes a row, no publish of an old epoch follows one of a newer, and nothing
//	    is published after it was discarded
//
// The rules of the protocol are switches. With one of them off the search must find a counterexample, which it
// prints as a trace: so each rule is known to be needed, and the search to be able to see.
//
// What is not in the model: rows without a key, and routes (relay's property test over its real lanes has both), the
// sweep, which must never find anything, and time. An owner may be frozen between any check and what it does next for
// any length of time; only a channel that was opened without a lease that holds is never published on (shard.holds).
package model
