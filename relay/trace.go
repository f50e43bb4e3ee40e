package relay

import (
	"time"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// trace tells of a publish that was confirmed, where the message has a trace. The span is made when it is over: a row in flight carries none.
func (r *row) trace(confirmed time.Time) {
	parent := r.msg.text(textTraceParent)
	if parent == "" {
		return
	}
	telemetry.Step{
		Operation: telemetry.OpPublish, Destination: r.route.name.exchange, MessageID: r.msg.text(textID), EventType: r.msg.text(textType),
		Parent: parent, State: r.msg.text(textTraceState), Began: confirmed.Add(-r.sentAt.ago(confirmed)), Ended: confirmed,
	}.Record()
}
