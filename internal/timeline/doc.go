// Package timeline puts together what all stores know of one message: its row in the outbox, the inbox, the index of the dead letters,
// runs, the archive, edits, what operators asked for, and the audit. It reads and changes nothing.
//
// It is exact about what it does not know, for that is most of a message's way when all is well: the outbox keeps no row after the
// confirm, and a message that waits in a queue or in a retry queue is in no table. Each such gap is a sentence in [Timeline.Unknown].
//
// The attempts that failed stand in the message alone, where it lies: whoever has looked at the dead letter adds them by
// [Timeline.AddLetter].
//
// Every text in a timeline may come from outside: escape it before it is shown.
package timeline
