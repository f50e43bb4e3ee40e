package deadletter

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Republishing is what a redrive from the dead-letter queue of work publishes.
func Republishing(d *amqp.Delivery, work, run string, now time.Time) amqp.Publishing {
	n := names{work: work, dlq: work + Suffix}
	f := factsOf(d, n)
	return republishing(d, &f, n, run, now)
}

// Matches is what a filter asks.
func Matches(w Where, body []byte) bool { return w.matches(body) }
