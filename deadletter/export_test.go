package deadletter

import (
	"fmt"
	"reflect"
	"testing"
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

// RoundTrip makes a letter of a record, and a record of that again, which must say the same.
func RoundTrip(t *testing.T, r Record) {
	t.Helper()
	d, err := r.delivery()
	if err != nil {
		return
	}
	once, err := recordOfLetter(d, string(r.Queue), true)
	if err != nil {
		t.Fatal(err)
	}
	again, err := once.delivery()
	if err != nil || !reflect.DeepEqual(d.Body, again.Body) && len(d.Body)+len(again.Body) > 0 || !sameTable(d.Headers, again.Headers) {
		t.Fatal(err, d, again)
	}
}

// sameTable compares printed: NaN is the same as NaN.
func sameTable(a, b amqp.Table) bool { return fmt.Sprintf("%#v", a) == fmt.Sprintf("%#v", b) }
