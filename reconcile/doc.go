// Package reconcile asks whoever knows about rows that have been in doubt for too long, and mends those that are wrong: a reservation
// whose order is gone, a payment whose provider never answered.
//
// A [Rule] says which rows of the user's own tables are suspects, which [Authority] knows the truth about one, and what each of its
// answers leads to: nothing, or a new status with an event that says so.
//
// Guarantees:
//   - asking changes nothing: the package only reads from an authority, over HTTP with GET, in SQL in a read-only transaction;
//   - no answer is no answer. A timeout, a refusal, a form that was not expected or an answer that the rule does not name leaves the
//     suspect as it is; it is asked about again, later and later, and never given up;
//   - each suspect is asked about by one process at a time and changed once, however many replicas run and whenever they are
//     killed: it is claimed under a lease, and the change names the claim, the status and the clock that were seen;
//   - the event is written into the outbox in the transaction of the change: never one without the other. Its id is derived from rule,
//     key, clock and status, so that the consumers' inbox makes repeats one effect;
//   - whoever changed the row first wins: then the answer is dropped;
//   - each cycle is a run with an id of its own that never changes; its log lines, events and suspects carry it;
//   - only the database's clock counts.
//
// A suspect's states:
//
//	        age passes          lease          answer that the rule acts on
//	in time ----------> suspect -----> claimed ------------------------------> new status + event, one transaction
//	                     ^   ^            |  '-- answer that is fine: kept, asked about again after Interval
//	                     |   '-- lease over (the process died)
//	                     '-- no answer, or the change failed: after Backoff, doubled, at most MaxBackoff
//
// Names of tables and columns come from configuration: they are quoted, never pasted. What an authority is told of a row goes into
// URLs escaped, and into SQL as parameters.
package reconcile
