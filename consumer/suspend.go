package consumer

import (
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
)

// Bounds of the wait for a dependency that is away.
const (
	suspendMin = time.Second
	suspendMax = 30 * time.Second
)

// suspension holds everything while a dependency or the database is away. One message at a time finds out whether it
// is back. For one goroutine.
type suspension struct {
	health  *health
	log     zerolog.Logger
	told    telemetry.Reminder
	active  bool
	until   time.Time
	wait    time.Duration
	probing *job
}

// begin starts or prolongs the suspension because of out. Jobs that had begun before it only confirm it.
func (s *suspension) begin(out outcome, now time.Time) {
	if s.active && s.probing != out.job {
		return
	}
	s.wait = min(max(2*s.wait, suspendMin), suspendMax)
	if !s.active {
		s.wait = suspendMin
	}
	wait := pause.Jitter(s.wait)
	if out.delay > 0 {
		wait = min(out.delay, suspendMax)
	}
	s.active, s.until, s.probing = true, now.Add(wait), nil
	if text := message.Clip(out.err.Error(), message.MaxErrorMessage); s.told.Due(text, now) {
		s.log.Warn().Str("error", text).Msg("dependency away, holding messages uncounted")
	}
	s.health.set(partSuspend, fmt.Errorf("holding messages, nothing is counted: a dependency is away: %w", out.err))
}

// end lifts the suspension when its probe came through.
func (s *suspension) end(j *job) {
	if !s.active || s.probing != j {
		return
	}
	s.log.Info().Msg("dependency back, going on")
	*s = suspension{health: s.health, log: s.log}
	s.health.set(partSuspend, nil)
}

// mayProbe says whether it is time to try one message.
func (s *suspension) mayProbe(now time.Time) bool { return s.probing == nil && !now.Before(s.until) }
