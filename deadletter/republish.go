package deadletter

import (
	"math"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
)

// republishing is the letter as it goes back to work: the same message, without the headers of the broker, of the
// attempts and of the last stack, and marked with the time and number of its redrive and the run that did it. A
// letter of the broker's own gets the origin that its death history names, which would otherwise be lost.
func republishing(d *amqp.Delivery, f *facts, n names, run string, now time.Time) amqp.Publishing {
	p := message.Republishing(d)
	message.ClearFailure(p.Headers)
	if f.death != nil && f.death.Queue == n.work {
		message.SetOrigin(p.Headers, message.Origin{Exchange: f.death.Exchange, RoutingKey: f.death.RoutingKey, Queue: n.work})
	}
	p.Headers[message.HeaderReprocess] = now.UTC().Format(time.RFC3339)
	p.Headers[message.HeaderRedriveCount] = min(max(f.redrives, 0), math.MaxInt64-1) + 1
	p.Headers[message.HeaderRedriveRun] = run
	telemetry.Step{
		Operation: telemetry.OpRedrive, Destination: n.work, MessageID: p.MessageId, EventType: p.Type,
		Parent: message.Text(p.Headers, message.HeaderTraceParent), State: message.Text(p.Headers, message.HeaderTraceState), Began: now, Ended: now,
	}.Record()
	return p
}
