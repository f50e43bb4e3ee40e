// Package consumer works on a queue: each message has its effects once, is retried with delays when it fails, and ends
// in the dead-letter queue with the record of its failures when that does not help.
//
// Guarantees (docs/guarantees.md G3, G4, G5, G9, G10):
//   - The inbox row, a [Handler]'s writes and the events that it enqueues are one transaction, committed before the
//     acknowledgement. A second delivery, also one that is in flight in another replica, waits for that row and is
//     acknowledged as a duplicate, for InboxRetention. A [PlainHandler] and a [RemoteHandler] have no such
//     transaction: the row, with a RemoteHandler's events, is written after it has returned, and a crash in between runs it again.
//   - A message that moves (retry tier, dead-letter queue) is published mandatory and confirmed before the original is
//     acknowledged. While that does not succeed the original stays where it is, and readiness says so. A crash between
//     the confirmed copy and the acknowledgement leaves two copies: x-attempts may then be one off per crash, and the
//     inbox keeps the effect single. Two dead letters of one id are possible; count ids, not copies.
//   - Attempts are counted in x-attempts, across processes. What is not the message's fault is not counted: a shutdown,
//     a database or a dependency that is away, a delivery before its time.
//   - An acknowledgement reaches the delivery that it is for, or nothing: each belongs to one subscription.
//   - Memory is bounded by Prefetch. Run returns after Drain and a few seconds; a handler that ignores its context
//     past that is left behind, with an error in the log, and its message comes again.
//
// # States of a delivery
//
//	received --(sf-not-before in the future)--------------------------> put off: uncounted copy in the retry tier, ack
//	   |
//	waiting  --(shutdown, long pause)---------------------------------> returned: nack with requeue
//	   |  ^--------------------------------------------.
//	   v                                               | held, uncounted: database or dependency away
//	running  --(deadlock, serialisation: 3 tries)-->---'
//	   |--committed, or a duplicate----------------------------------> ack
//	   |--transient, unknown, timeout, attempts left-----------------> counted copy in the retry tier, confirmed, ack
//	   |--permanent, malformed, unknown type, no id, panic-----------> copy with its record in the DLQ, confirmed, ack
//	   |--attempts used up, also by crashes--------------------------> the same
//	   |--cancelled by the shutdown----------------------------------> returned
//	   '--cannot be published again (a body over the limit)------------> reject: the broker dead-letters it
//
// A delivery whose subscription has ended is forgotten in any state; what runs goes on, and the inbox makes its second
// delivery a duplicate.
//
// # A message that kills its process
//
// When a process dies, the broker redelivers everything it held, and nothing tells which message was the cause. So a
// redelivered message is a suspect:
//
//   - It runs alone: every other handler of the process (see [Solo]) has ended before, and none starts meanwhile.
//   - It is charged before it runs: a row in inbox_suspects counts its runs. When the run ends, whatever its outcome,
//     the charge is taken back. A charge that is found at the next start is a run in which the process died, and only
//     this message was running. Such runs count as failed attempts; when they use up the attempts, the message is
//     dead-lettered, class crash, without being run again. The first crash, with others running, is charged to nobody.
//   - Its neighbours are spared the broker's delivery limit, which counts a crash against everything held. A process
//     begins with a prefetch of one and takes more only when a message comes that is no suspect. What was delivered
//     fewest times runs first, so innocents are through when the killer's turn comes.
//
// This does not depend on what the broker counts, so it is the same on classic and quorum queues, from RabbitMQ 3.10 to
// 4.3 and with any number of replicas. Only one thing differs: 4.3 tells a returned message (x-acquired-count alone)
// from one whose consumer died (x-delivery-count too), while before it a message returned at a shutdown is a suspect as
// well, which costs it a turn alone and nothing else. A kill from outside while a suspect runs charges it wrongly, once
// per kill. x-delivery-count only orders suspects; it is never an attempt, for lost connections raise it too.
//
// # Order
//
// With [OrderLanes] the messages of a key run one at a time, in the order of delivery; a message in the retry tier is
// overtaken. On a single-active-consumer queue this holds across replicas: a subscription is given up only when nothing
// runs, together with what it holds, so that the next active consumer begins with exactly that. This costs a delivery
// of the broker's limit at each shutdown.
//
// # Batches
//
// A [BatchHandler] handles up to BatchSize messages in one transaction, which saves most of what a message costs: its
// commit and its round trips. The inbox rows are written first, in the order of their ids, so that two replicas with the
// same messages do not deadlock over them. Duplicates, of earlier transactions or in the same batch, are left out of
// what the handler sees, and are acknowledged with the others. A batch starts when it is full, when its first message has
// waited for BatchWait, or when Prefetch are held and none can come.
//
// Only success is shared. Whatever else becomes of the handler or the commit (error, panic, deadline, deadlock), the
// transaction is rolled back, nothing is counted, and the messages are run singly at once: classes, attempts, retries,
// dead letters and records are those of single messages. When nobody knows whether the commit took effect, the inbox
// tells in the single run. While a database or dependency is away the messages are held, and then run singly; a shutdown
// returns them.
//
// Suspects, and messages that are put off, are in no batch. With [OrderLanes] a batch takes the messages of a key in
// order, and later ones of that key wait for all of it. A batch has one deadline, takes one place of Concurrency, is one
// observation of the handler's seconds and one span, with a link to each message; all else is counted per message.
//
// # Pauses and absences
//
// A pause ([PauseQueue]) keeps what is held unacknowledged and starts nothing. Because the broker takes back what is
// held for half an hour, everything is given back once after RenewAfter, and nothing is held for the rest of the pause.
// While the database or a dependency (class unavailable) is away, one message at a time finds out whether it is back,
// after 1 s and up to 30 s, or when an open circuit (package policy) lets a probe through; what is held for RenewAfter
// makes a round through the retry tier, uncounted. See [Absence] for the other way. A database connection that hangs under a
// handler cannot be told from a slow handler: it is a timeout, and counted.
//
// A message with an expiry (see message.Message.ExpiresAt) is given no more time than is left of its whole job, and is a dead
// letter, class expired, when none is.
package consumer
