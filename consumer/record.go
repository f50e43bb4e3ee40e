package consumer

import (
	"errors"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// counted returns the copy of a failed message: attempts, origin and the record of the failure in its headers.
func (c *Consumer) counted(d *amqp.Delivery, err error, v verdict) amqp.Publishing {
	copied := c.uncounted(d)
	delete(copied.Headers, message.HeaderNotBefore)
	copied.Headers[message.HeaderAttempts] = int64(v.attempts)
	failureOf(err, v.class, c.opts).Write(copied.Headers, v.attempts)
	return copied
}

// uncounted returns the copy of a message that is only put off.
func (c *Consumer) uncounted(d *amqp.Delivery) amqp.Publishing {
	copied := message.Republishing(d)
	message.SetOrigin(copied.Headers, message.Origin{Exchange: d.Exchange, RoutingKey: d.RoutingKey, Queue: c.opts.Queue})
	return copied
}

func failureOf(err error, class resilience.Class, o Options) message.Failure {
	f := message.Failure{
		Class: string(class), Type: typeOf(err), Message: printable(err.Error()), Stack: printable(stackOf(err)),
		LastFailedAt: time.Now(), Host: o.Host, Version: o.Version,
	}
	if frame := frameOf(err); frame != "" { // panics with one text in two handlers are two causes
		f.Fingerprint = message.Fingerprint(f.Class, f.Type+" in "+frame, f.Message)
	}
	return f
}

// frameOf names the function that panicked, without its line, which moves with every release. Empty without a panic.
func frameOf(err error) string {
	var panicked *PanicError
	if !errors.As(err, &panicked) {
		return ""
	}
	_, below, found := strings.Cut(panicked.Stack, "\npanic(") // the newest; above it is what caught it
	for line := range strings.Lines(below) {
		if !found || strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "runtime.") || strings.HasPrefix(line, "{") || strings.HasPrefix(line, "0x") {
			continue
		}
		if end := strings.LastIndexByte(line, '('); end > 0 {
			return message.Clip(line[:end], 128)
		}
	}
	return ""
}

// printable drops NUL bytes, which the index of dead letters could not store.
func printable(s string) string { return strings.ReplaceAll(s, "\x00", "") }

func notBefore(h amqp.Table) time.Time {
	at, some := h[message.HeaderNotBefore]
	if !some {
		return time.Time{}
	}
	ms, ok := message.Integer(at)
	if !ok || ms <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
