package reconcile

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/internal/usertable"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// mostLines bounds the lines of one batch about suspects that stay, so that an authority that is away does not fill the disk.
const mostLines = 10

// report speaks of a row that was wrong, once it is mended. Each has its line.
func (b *batch) report(s claimed, answer string) {
	action := b.c.Answers[answer]
	b.logger(s, answer).Error().Str(telemetry.FieldReason, action.Reason).Str(telemetry.FieldType, action.EventType).
		Str(telemetry.FieldEventID, eventID(s.Suspect, action).String()).Str("status", action.NewStatus).Str("previous_status", s.Status).
		Time("since", s.Since.UTC()).Msg(b.c.subject() + " discrepancy")
}

// complain speaks of a suspect that stays.
func (b *batch) complain(s claimed, answer, what string, cause error, next time.Time) {
	b.mu.Lock()
	b.lines++
	told := b.lines <= mostLines
	b.mu.Unlock()
	if !told {
		return
	}
	level, text := zerolog.WarnLevel, "suspect unanswered"
	if what == resultFailed {
		level, text = zerolog.ErrorLevel, "reconcile error"
	}
	b.logger(s, answer).WithLevel(level).Str(telemetry.FieldErrorClass, string(resilience.Classify(cause))).Str("error", usertable.Bounded(cause)).
		Time("next_check", next.UTC()).Msg(text)
}

// tellRest speaks of those that had no line of their own.
func (b *batch) tellRest() {
	if more := b.lines - mostLines; more > 0 {
		b.r.options.Logger.Warn().Str(telemetry.FieldRule, b.c.Name).Str(telemetry.FieldRun, b.run.String()).Int("suspects", more).
			Msg("more suspects of this batch stay: see `surefoot reconcile ls`")
	}
}

// logger names the suspect, and the answer if there was one.
func (b *batch) logger(s claimed, answer string) *zerolog.Logger {
	with := b.r.options.Logger.With().Str(telemetry.FieldRule, b.c.Name).Str(telemetry.FieldRun, b.run.String()).
		Str(telemetry.FieldKey, message.Clip(s.Key, maxText))
	if answer != "" {
		with = with.Str("answer", message.Clip(answer, maxText))
	}
	logger := with.Logger()
	return &logger
}
