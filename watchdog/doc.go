// Package watchdog ends sagas that got stuck: rows of the user's own tables that have been in one status for
// longer than a limit are moved into another, and an event says so.
//
// Guarantees (docs/guarantees.md G8):
//   - each stuck row is changed once, however many watchdogs run and whenever they are killed: it is claimed
//     with FOR UPDATE SKIP LOCKED and changed by an UPDATE that looks again whether it is still stuck;
//   - the event is written into the outbox in the same transaction: never one without the other. Its id is
//     derived from rule, key and clock, so that the consumers' inbox makes repeats one effect;
//   - whoever changed the row first wins. A payment that commits before the watchdog's claim leaves nothing to
//     cancel; one that comes later finds the new status, if its own UPDATE is guarded by the status it expects;
//   - a row that fails is recorded with the time of its next try and left out until then. Rows without a
//     failure always come first, so failing ones cannot starve them;
//   - what an operator holds ([Watchdog.Extend], [Watchdog.Skip]) is left alone, also when the hold commits between the claim and
//     the change; a hold is of one stay in the status, and the watched table is not touched for it;
//   - only the database's clock counts.
//
// A row's states, as the watchdog sees them:
//
//	          clock + limit passes              guarded UPDATE + event, one transaction
//	in time ------------------------> overdue ------------------------------------------> new status
//	   ^                               |   ^
//	   |   changed by somebody else    |   | next_try (1 min, doubled, at most 1 h)
//	   '-------------------------------'   |
//	                          fails -> recorded in watchdog_failures
//
//	in time or overdue --Extend, Skip--> held --time is over, Lift--> as before
//
// Names of tables and columns come from configuration: they are quoted, never pasted.
package watchdog
