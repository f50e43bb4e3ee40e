package relay

import (
	"time"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// trace tells of a publish that was confirmed, where the message has a trace. The span is made when it is over: a row in flight carries none.
func (r *row) trace(confirmed time.Time) {
	if r.msg.TraceParent == "" {
		return
	}
	telemetry.Step{
		Operation: telemetry.OpPublish, Destination: r.msg.Exchange, MessageID: r.msg.ID, EventType: r.msg.Type,
		Parent: r.msg.TraceParent, State: r.msg.TraceState, Began: r.sentAt, Ended: confirmed,
	}.Record()
}
