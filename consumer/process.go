package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// clockTimeout bounds a look at the database's clock.
const clockTimeout = 2 * time.Second

// work processes a job and reports exactly one outcome, also when the handler ends its
// goroutine (runtime.Goexit).
func (c *Consumer) work(j *job, outcomes chan<- []outcome, gone <-chan struct{}) {
	defer telemetry.FatalOnPanic(c.log)
	out := outcome{job: j, action: actDrop}
	ended := false
	defer func() {
		notByPanic(recover())
		if !ended {
			out = c.fail(j, ClassPanic, 0, errGoexit())
		}
		c.report([]outcome{out}, outcomes, gone)
	}()
	out = c.process(j)
	ended = true
}

// notByPanic is for what follows the end of a goroutine by runtime.Goexit: a panic outside of a handler goes on, and
// nothing is done to the message.
func notByPanic(cause any) {
	if cause != nil {
		panic(cause)
	}
}

// report leaves the place of a handler and sends what became of its jobs.
func (c *Consumer) report(outs []outcome, outcomes chan<- []outcome, gone <-chan struct{}) {
	<-c.slots
	select {
	case outcomes <- outs:
	case <-gone:
		c.wake()
	}
}

// wake tells the present loop that a job of an earlier one has left its place.
func (c *Consumer) wake() {
	select {
	case c.freed <- struct{}{}:
	default:
	}
}

// process decides what becomes of a delivery and does it, up to the acknowledgement.
func (c *Consumer) process(j *job) outcome {
	if err := c.opts.step("after-deliver"); err != nil {
		return outcome{job: j, action: actDrop}
	}
	if wait := c.tooEarly(j); j.renew || wait > 0 {
		return c.putOff(j, wait)
	}
	if j.msg.ID == "" && !c.opts.AllowNoID {
		return c.fail(j, ClassNoID, 0, noIDError{})
	}
	ctx, span := c.startSpan(j)
	defer span.End()
	class, crashes, err := c.attempt(ctx, j)
	switch {
	case err == nil:
		return c.done(j, "done")
	case errors.Is(err, errDuplicate):
		return c.done(j, "duplicate")
	}
	span.SetStatus(codes.Error, string(class))
	span.SetAttributes(attribute.String(telemetry.AttrErrorType, string(class)))
	out := c.fail(j, class, crashes, err)
	c.cleared(j, out.action == actAck)
	return out
}

// tooEarly is how long a message has to wait still; 0: not at all, also when it claims to have to for longer than can be asked for.
func (c *Consumer) tooEarly(j *job) time.Duration {
	if j.early.IsZero() {
		return 0
	}
	wait := j.early.Sub(c.clock())
	if wait > maxDeferral {
		return 0
	}
	return max(wait, 0)
}

// clock is the database's, which all replicas share: a wall clock that is wrong, or was set by an hour meanwhile, would run a
// message too early or keep it in circles. It is asked for deferred messages alone. Without an answer it is this process's.
func (c *Consumer) clock() time.Time {
	ctx, cancel := context.WithTimeout(c.handlers, clockTimeout)
	defer cancel()
	now, err := c.databaseTime(ctx)
	if err != nil {
		return time.Now()
	}
	return now
}

func (c *Consumer) databaseTime(ctx context.Context) (now time.Time, err error) {
	err = c.opts.Pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now)
	return now, err
}

// done is the end of a message that was handled, now or before. The mark of a handler without transaction is cleared here; a
// transaction has done that itself.
func (c *Consumer) done(j *job, result string) outcome {
	if result == "duplicate" || c.remote != nil {
		c.cleared(j, true)
	}
	if err := c.opts.step("after-commit"); err != nil {
		return outcome{job: j, action: actDrop}
	}
	c.metrics.settled(j.msg.Type, result)
	return outcome{job: j, action: actAck}
}

// cleared takes a suspect's run off its mark, for it has ended; with moved the whole mark goes. Should that fail, the
// message is charged one attempt too many if it ever comes back.
func (c *Consumer) cleared(j *job, moved bool) {
	if !j.suspect {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.handlers), rollbackTimeout)
	defer cancel()
	var err error
	if moved {
		err = c.inbox.clear(ctx, c.opts.Pool, j.key)
	} else {
		err = c.inbox.unmark(ctx, j.key)
	}
	if err != nil {
		c.log.Debug().EmbedObject(j).Err(err).Msg("mark of redelivered message stays")
	}
}

// decide says what is to become of a message that failed.
func (c *Consumer) decide(j *job, class resilience.Class, crashes int, err error) verdict {
	return judge(class, err, j.msg.Attempts+crashes, c.opts.MaxAttempts).after(err, j)
}

// fail decides about a failure and carries the decision out.
func (c *Consumer) fail(j *job, class resilience.Class, crashes int, err error) outcome {
	v := c.decide(j, class, crashes, err)
	switch v.action {
	case actReturn:
		c.metrics.settled(j.msg.Type, "returned")
		return outcome{job: j, action: actReturn}
	case actHold:
		return c.hold(j, err, v.delay)
	case actDead:
		return c.bury(j, err, v)
	case actRetry, actDrop, actAck, actSingly, actDiscarded: // judge gives no other than the first
	}
	return c.retry(j, err, v)
}

// retry moves a counted copy to the retry tier.
func (c *Consumer) retry(j *job, err error, v verdict) outcome {
	tier, late := tierFor(c.opts.Retry, v.attempts, v.delay)
	copied := c.counted(j.delivery, err, v)
	if late {
		copied.Headers[message.HeaderNotBefore] = c.clock().Add(v.delay).UnixMilli()
	}
	c.log.Warn().EmbedObject(j).Int(telemetry.FieldAttempt, v.attempts).Str(telemetry.FieldErrorClass, string(v.class)).
		Stringer("delay", max(tier.Delay, v.delay)).Str("error", message.Clip(err.Error(), message.MaxErrorMessage)).Msg("deferred retry")
	return c.move(j, tier.Queue, copied, telemetry.OpRetry, func() { c.metrics.retries.WithLabelValues(c.opts.Queue, string(v.class)).Inc() })
}

// bury moves a counted copy to the dead-letter queue.
func (c *Consumer) bury(j *job, err error, v verdict) outcome {
	text := "retries exhausted, sending to DLQ"
	if v.poison {
		text = "poison message, sending to DLQ"
	}
	c.log.Error().EmbedObject(j).Int(telemetry.FieldAttempt, v.attempts).Str(telemetry.FieldErrorClass, string(v.class)).
		Str("error", message.Clip(err.Error(), message.MaxErrorMessage)).Msg(text)
	copied := c.counted(j.delivery, err, v)
	return c.move(j, c.opts.DeadLetters, copied, telemetry.OpDead, func() {
		c.metrics.dead.WithLabelValues(c.opts.Queue, string(v.class)).Inc()
		c.index.add(&copied, string(v.class))
	})
}

// putOff moves an uncounted copy to the retry tier: it came too early, or was held for too long. Headers that fill a
// frame, or what the client library takes, cannot make that round: the broker adds its x-death, could then not deliver the message any more, and would
// close the connection of whoever consumes. With its record, which makes room, such a message is a dead letter.
func (c *Consumer) putOff(j *job, wait time.Duration) outcome {
	copied := c.uncounted(j.delivery)
	if size := message.TableSize(copied.Headers); size > message.MaxHeaders || len(copied.Headers) > message.MaxNames {
		return c.fail(j, ClassMalformed, 0, &MalformedError{
			fmt.Errorf("the %d headers take %d bytes, more than the %d and %d with which a message can be put off",
				len(copied.Headers), size, message.MaxNames, message.MaxHeaders),
		})
	}
	tier, _ := tierFor(c.opts.Retry, 1, max(wait, time.Millisecond))
	return c.move(j, tier.Queue, copied, telemetry.OpRetry, func() {})
}

// move publishes the copy and, only when that is confirmed, lets the original be acknowledged.
func (c *Consumer) move(j *job, queue string, copied amqp.Publishing, step string, moved func()) outcome {
	if err := c.opts.step("before-" + step); err != nil {
		return outcome{job: j, action: actDrop}
	}
	ctx, cancel := context.WithCancel(c.moves)
	defer cancel()
	defer context.AfterFunc(j.from.alive, cancel)()
	began := time.Now()
	err := c.mover.move(ctx, queue, copied)
	if rabbit.IsRefused(err) {
		return c.refused(j, err)
	}
	if err != nil {
		return outcome{job: j, action: c.unmoved(j)}
	}
	moved()
	j.trace(step, queue, began)
	if err := c.opts.step("after-" + step); err != nil {
		return outcome{job: j, action: actDrop}
	}
	c.metrics.settled(j.msg.Type, step)
	return outcome{job: j, action: actAck}
}

// unmoved says what becomes of a message whose move was given up.
func (c *Consumer) unmoved(j *job) action {
	if j.over() {
		return actDrop
	}
	return actReturn
}

// refused answers a copy that can never be sent: its body is over the limit. The broker's own dead-lettering, whose path
// was verified, can move it.
func (c *Consumer) refused(j *job, why error) outcome {
	if c.opts.Unverified {
		c.log.Error().EmbedObject(j).Err(why).Msg("message can be moved nowhere; it is held until this consumer stops")
		return outcome{job: j, action: actDrop}
	}
	c.log.Error().EmbedObject(j).Err(why).Msg("message cannot be published again; the broker moves it to the DLQ without a record")
	c.metrics.settled(j.msg.Type, "rejected")
	return outcome{job: j, action: actDiscarded}
}

// startSpan begins the process span, linked to the one that created the message. What differs from message to message is added only to a
// span that is recorded.
func (c *Consumer) startSpan(j *job) (context.Context, trace.Span) {
	options := c.span
	if j.msg.TraceParent != "" {
		options = append(slices.Clip(options), trace.WithLinks(telemetry.TraceLinks(j.msg.TraceParent, j.msg.TraceState)...))
	}
	ctx, span := otel.Tracer(telemetry.TracerName).Start(c.handlers, c.spanName, options...)
	if span.IsRecording() {
		span.SetAttributes(
			attribute.String(telemetry.AttrMessageID, message.Clip(j.msg.ID, 255)), attribute.String(telemetry.AttrEventType, message.Clip(j.msg.Type, 255)),
			attribute.Int(telemetry.AttrAttempt, j.msg.Attempts+1), attribute.Int(telemetry.AttrBodySize, len(j.msg.Payload)),
		)
	}
	return ctx, span
}

// spanOptions are those of every process span.
func spanOptions(queue string) []trace.SpanStartOption {
	return []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		attribute.String(telemetry.AttrSystem, telemetry.SystemRabbitMQ), attribute.String(telemetry.AttrOperationName, telemetry.OpProcess),
		attribute.String(telemetry.AttrOperationType, telemetry.OpProcess), attribute.String(telemetry.AttrDestination, queue),
	)}
}

// tag names the consumer on the management page.
func (c *Consumer) tag(n uint64) string {
	return message.Clip(fmt.Sprintf("surefoot consumer %s %s %d", c.opts.Host, c.opts.Version, n), 200)
}
