package consumer

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Handler handles one message in a transaction that belongs to the consumer: what it writes through tx, and what
// it enqueues there, is committed together with the inbox row, or not at all. It must not end tx, by pgx or by SQL, nor
// leave rows open: such a message is a dead letter on the first try, and nothing is committed but what the handler itself
// committed before. tx is recognised by its application_name: leave that alone where messages may come without an id.
// m is the handler's own copy, to change as it likes.
//
// nil means done. Any other error is classified by resilience.Classify; [Permanent] and [RetryAfter] say more. ctx
// ends at the message's deadline and at a shutdown; return soon then. Handlers run concurrently.
type Handler func(ctx context.Context, tx pgx.Tx, m message.Message) error

// PlainHandler handles a message whose effects are not in this database. Its inbox row is written after it has
// returned nil: a crash in between runs it again, so it is at-least-once and must be idempotent.
type PlainHandler func(ctx context.Context, m message.Message) error

// RemoteHandler handles a message whose effects are in another process or service, and returns the events that it caused. No
// transaction is open while it runs. Afterwards the events go into the outbox in the one that writes the inbox row: they are emitted
// once, together with the record that the message is done, and not at all with an error. Like a [PlainHandler] it is
// at-least-once, so whoever does the work must know a message's ID again; of two runs whose answers come at the same time the events
// of one are emitted. An event that the outbox refuses makes the message a dead letter.
type RemoteHandler func(ctx context.Context, m message.Message) ([]message.Message, error)

// Middleware wraps a handler, for example to log or to measure.
type Middleware func(Handler) Handler

// Chain wraps h so that the first middleware is the outermost.
func Chain(h Handler, middleware ...Middleware) Handler {
	for _, wrap := range slices.Backward(middleware) {
		h = wrap(h)
	}
	return h
}

// Permanent marks an error that will not go away by trying again: the message is dead-lettered at once.
func Permanent(err error) error { return resilience.Permanent(err) }

// RetryAfter marks err as transient and asks for the next try not before d from now, at most 24 h. The wait is
// rounded up to a tier of the retry ladder.
func RetryAfter(err error, d time.Duration) error { return resilience.RetryAfter(err, d) }

// Unavailable marks err as the absence of a dependency: the consumer holds its messages, counts nothing and tries
// again by itself.
func Unavailable(err error) error { return resilience.Unavailable(err) }
