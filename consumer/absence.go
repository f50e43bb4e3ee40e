package consumer

import (
	"errors"
	"time"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
)

// Absence says what becomes of messages while a dependency of their handler is known to be away: class unavailable, for example
// because its circuit is open. No attempt is counted in either case.
type Absence string

const (
	// AbsenceHold pauses the queue: messages stay where they are, and one that is held finds out from time to time whether the
	// dependency is back.
	AbsenceHold Absence = "hold"
	// AbsenceRetry lets every message that meets it make a round through the retry tier, for queues most of whose messages do not
	// need that dependency. They overtake the others.
	AbsenceRetry Absence = "retry"
)

// hold keeps a message whose handler's dependency, or the consumer's database, is away.
func (c *Consumer) hold(j *job, err error, delay time.Duration) outcome {
	if !c.opts.evades(err) {
		return outcome{job: j, action: actHold, err: err, delay: delay}
	}
	c.log.Warn().EmbedObject(j).Int(telemetry.FieldAttempt, j.msg.Attempts).Stringer("delay", delay).
		Str("error", message.Clip(err.Error(), message.MaxErrorMessage)).Msg("dependency away, message to the retry tier uncounted")
	return c.putOff(j, delay)
}

// evades says whether the retry tier takes what an absence concerns. Without its database a consumer cannot go on.
func (o Options) evades(err error) bool {
	var database *databaseError
	return o.Absence == AbsenceRetry && !errors.As(err, &database)
}
