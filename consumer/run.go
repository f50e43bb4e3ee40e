package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Tries inside the process after a deadlock or a serialisation failure, and the wait before the second.
const (
	databaseTries = 3
	databaseWait  = 50 * time.Millisecond
)

// attempt runs a message: alone if it is a suspect, with its deadline, and again at once after a deadlock. It returns the
// error with its class, and how many earlier runs ended with the process.
func (c *Consumer) attempt(ctx context.Context, j *job) (resilience.Class, int, error) {
	crashes := 0
	leave, err := c.opts.Solo.enter(ctx, j.suspect)
	if err != nil {
		return resilience.ClassShutdown, 0, err
	}
	defer leave()
	ctx, cancel := resilience.WithBudget(ctx, c.opts.Timeout)
	defer cancel()
	if j.suspect {
		if crashes, err = c.mark(ctx, j); err != nil {
			return c.opts.classOf(ctx, err), crashes, err
		}
	}
	ctx, release, err := c.untilExpiry(ctx, j)
	defer release()
	if err != nil {
		return c.opts.classOf(ctx, err), crashes, err
	}
	defer c.watchLate(j)()
	defer c.measure(time.Now())
	err = c.tries(ctx, j)
	return c.opts.classOf(ctx, err), crashes, err
}

// mark charges a suspect before it runs, and refuses to run it when its attempts are used up by crashes.
func (c *Consumer) mark(ctx context.Context, j *job) (crashes int, err error) {
	crashes, err = c.inbox.mark(ctx, j.key, lap(j.delivery.Headers))
	if err == nil && crashes > 0 && j.msg.Attempts+crashes >= c.opts.MaxAttempts {
		err = &crashError{crashes}
	}
	return crashes, errors.Join(err, c.opts.step("after-mark"))
}

func (c *Consumer) measure(began time.Time) { c.metrics.took(time.Since(began)) }

// tries repeats the whole transaction after a deadlock or a serialisation failure.
func (c *Consumer) tries(ctx context.Context, j *job) error {
	for try := 1; ; try++ {
		err := c.once(ctx, j)
		if try == databaseTries || c.opts.classOf(ctx, err) != resilience.ClassDatabaseRetry {
			return err
		}
		c.log.Warn().EmbedObject(j).Int("try", try).Str(telemetry.FieldSQLState, resilience.SQLStateOf(err)).Msg("database retry")
		if !pause.For(ctx, pause.Jitter(databaseWait<<(try-1))) {
			return err
		}
	}
}

// once runs the handler once. errDuplicate says that there was nothing to do.
func (c *Consumer) once(ctx context.Context, j *job) error {
	if c.remote != nil {
		return c.without(ctx, j)
	}
	return c.inbox.inTx(ctx, j.inboxKey(), func(tx pgx.Tx) error {
		if err := c.call(ctx, tx, func() error { return c.handle(ctx, tx, j.msg.Clone()) }); err != nil {
			return err
		}
		if j.suspect {
			if err := c.inbox.clear(ctx, tx, j.key); err != nil {
				return err
			}
		}
		return c.opts.step("before-commit")
	})
}

// without runs a handler that has no transaction, and records afterwards that the message is done. Should only that fail, the
// next try does that alone.
func (c *Consumer) without(ctx context.Context, j *job) error {
	if !j.effect {
		if err := c.withoutOnce(ctx, j); err != nil {
			return err
		}
		j.effect = true
	}
	if j.inboxKey() == nil && len(j.events) == 0 {
		return nil
	}
	if err := c.opts.step("before-commit"); err != nil {
		return err
	}
	if len(j.events) == 0 {
		return c.inbox.remember(ctx, j.key)
	}
	return c.emit(ctx, j)
}

// emit enqueues a handler's events together with the inbox row. When the row is there already, another run has emitted its own, or
// this one has, and the answer to its commit was lost.
func (c *Consumer) emit(ctx context.Context, j *job) error {
	ctx = message.NewContext(ctx, j.msg)
	return c.inbox.inTx(ctx, j.inboxKey(), func(tx pgx.Tx) error {
		err := outbox.Enqueue(ctx, tx, j.events...)
		if _, refused := errors.AsType[*message.InvalidError](err); refused {
			return Permanent(err)
		}
		return err
	})
}

// remote is the handler that has no transaction; nil when there is none.
func (o Options) remote() RemoteHandler {
	if o.Plain == nil {
		return o.Remote
	}
	return func(ctx context.Context, m message.Message) ([]message.Message, error) { return nil, o.Plain(ctx, m) }
}

// unhandled is errDuplicate for a message that the inbox has.
func (c *Consumer) unhandled(ctx context.Context, j *job) error {
	if j.inboxKey() == nil {
		return nil
	}
	known, err := c.inbox.knows(ctx, j.key)
	if err == nil && known {
		err = errDuplicate
	}
	return err
}

func (c *Consumer) withoutOnce(ctx context.Context, j *job) error {
	if err := c.unhandled(ctx, j); err != nil {
		return err
	}
	return c.opts.guard(ctx, func() (err error) {
		m := j.msg.Clone()
		j.events, err = c.remote(message.NewContext(ctx, m), m)
		return err
	})
}

// call runs a handler and looks at what it left of the transaction. What it gets is a copy of the message: the original's
// bytes are those that a retry or a dead letter must carry, whatever the handler does to its own.
func (c *Consumer) call(ctx context.Context, tx pgx.Tx, handler func() error) error {
	if err := c.opts.guard(ctx, handler); err != nil {
		return err
	}
	return misuse(tx)
}

// guard turns a panic into an error with the stack. The methods of the error that the handler returns are its code too,
// and are asked everything once that will be asked later.
func (o Options) guard(ctx context.Context, handler func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = &PanicError{Value: message.Clip(fmt.Sprint(cause), message.MaxErrorMessage), Stack: string(debug.Stack())}
		}
	}()
	if err = handler(); err != nil {
		o.examine(ctx, err)
	}
	return err
}

// examine calls every method of an error that the consumer uses.
func (o Options) examine(ctx context.Context, err error) {
	_ = failureOf(err, o.classOf(ctx, err), o)
	_, _ = resilience.DelayOf(err)
	_ = errors.Is(err, errDuplicate)
	if limited, ok := errors.AsType[patience](err); ok {
		_ = limited.GiveUp(nil)
	}
}
