package policy

import (
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// linesPerSecond of one kind are written: a storm of refusals must not become one of logs.
const linesPerSecond = 10

// eventLog writes what happens to calls. Transitions are always written.
type eventLog struct {
	log           zerolog.Logger
	sheds, retrys throttle
}

func (l *eventLog) transition(t transition, s resilience.Breaker) {
	e := l.log.Warn().Stringer("from", t.from).Stringer("to", t.to).Int("failures", t.failures)
	if t.instance != "" {
		e = e.Str("instance", message.Clip(t.instance, message.MaxShortString))
	}
	if t.to == Open {
		e = e.Stringer("open", s.Open)
	}
	if t.reason != nil {
		e = e.Str("error", message.Clip(t.reason.Error(), message.MaxErrorMessage))
	}
	e.Msg("circuit state changed")
}

func (l *eventLog) shed(ctx context.Context, err error, reason string, after time.Duration) {
	leftOut, ok := l.sheds.take(time.Now())
	if !ok {
		return
	}
	log := l.about(ctx)
	log.Warn().Str(telemetry.FieldReason, reason).Stringer("retry_after", after).Int("left_out", leftOut).
		Str("error", message.Clip(err.Error(), message.MaxErrorMessage)).Msg("call refused")
}

func (l *eventLog) retry(ctx context.Context, f failure, attempt int, wait time.Duration) {
	leftOut, ok := l.retrys.take(time.Now())
	if !ok {
		return
	}
	log := l.about(ctx)
	log.Warn().Int(telemetry.FieldAttempt, attempt).Stringer("wait", wait).Str(telemetry.FieldErrorClass, string(f.class)).Int("left_out", leftOut).
		Str("error", message.Clip(f.err.Error(), message.MaxErrorMessage)).Msg("call retried")
}

// about is the logger of a call, with the id of the request that it belongs to.
func (l *eventLog) about(ctx context.Context) zerolog.Logger {
	if id := message.RequestIDFrom(ctx); id != "" {
		return l.log.With().Str(telemetry.FieldRequestID, id).Logger()
	}
	return l.log
}

// throttle lets some events of each second through and counts the others.
type throttle struct {
	mu      sync.Mutex
	second  time.Time
	taken   int
	leftOut int
}

func (t *throttle) take(now time.Time) (leftOut int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.second) >= time.Second {
		t.second, t.taken = now, 0
	}
	if t.taken == linesPerSecond {
		t.leftOut++
		return 0, false
	}
	leftOut, t.leftOut = t.leftOut, 0
	t.taken++
	return leftOut, true
}
