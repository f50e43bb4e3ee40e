package consumer

import (
	"time"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// trace tells of a move to the retry tier or to the dead-letter queue that was confirmed. The steps are called as the operations are.
func (j *job) trace(step, queue string, began time.Time) {
	telemetry.Step{
		Operation: step, Destination: queue, MessageID: j.msg.ID, EventType: j.msg.Type, Attempt: j.msg.Attempts + 1,
		Parent: j.msg.TraceParent, State: j.msg.TraceState, Began: began, Ended: time.Now(),
	}.Record()
}
