package rabbit

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// SuperviseOptions say how to keep a session going.
type SuperviseOptions struct {
	// Options of each connection; required.
	Options Options
	// BackoffMin is the longest wait after the first failure; it doubles with each further one; default 100 ms.
	BackoffMin time.Duration
	// BackoffMax bounds the wait; default 10 s.
	BackoffMax time.Duration
	// HealthyAfter is how long a session must run for the backoff to start anew; default 30 s.
	HealthyAfter time.Duration
	// OnState is called from Supervise's goroutine, with nil when connected and with the reason at each failure of a dial or a session; default none.
	OnState func(error)
}

// Supervise dials and runs session. When either fails it waits, with full jitter, and goes on with a new connection. It returns nil when ctx ends or session
// returns nil, and an error only for invalid Options. It closes the connection after each session, which must have stopped using it.
func Supervise(ctx context.Context, opts SuperviseOptions, session func(context.Context, *Conn) error) error {
	if err := opts.Options.Validate(); err != nil {
		return err
	}
	s := supervisor{opts: opts.withDefaults()}
	for ctx.Err() == nil {
		begun := time.Now()
		err := s.once(ctx, session)
		if err == nil || ctx.Err() != nil {
			return nil //nolint:nilerr // a session cut off by the end of ctx has not failed
		}
		if time.Since(begun) >= s.opts.HealthyAfter {
			s.failures = 0
			s.told.Over()
		}
		s.report(err)
		pause.For(ctx, s.backoff())
	}
	return nil
}

func (o SuperviseOptions) withDefaults() SuperviseOptions {
	o.BackoffMin = cmp.Or(o.BackoffMin, 100*time.Millisecond)
	o.BackoffMax = cmp.Or(o.BackoffMax, 10*time.Second)
	o.HealthyAfter = cmp.Or(o.HealthyAfter, 30*time.Second)
	if o.OnState == nil {
		o.OnState = func(error) {}
	}
	return o
}

type supervisor struct {
	opts        SuperviseOptions
	failures    int // in a row
	undecodable int // in a row; see quick
	told        telemetry.Reminder
	unreachable bool // the last dial failed
}

func (s *supervisor) once(ctx context.Context, session func(context.Context, *Conn) error) error {
	conn, err := Dial(ctx, s.opts.Options)
	if err != nil {
		s.unreachable = true
		return err
	}
	s.connected(conn)
	defer func() {
		if err := conn.Close(); err != nil {
			s.opts.Options.Logger.Debug().Err(err).Msg("broker connection not closed cleanly")
		}
	}()
	return session(ctx, conn)
}

func (s *supervisor) connected(conn *Conn) {
	level := zerolog.DebugLevel
	if s.unreachable {
		level = zerolog.InfoLevel
	}
	s.opts.Options.Logger.WithLevel(level).Str("connection", s.opts.Options.Role).Str("broker", conn.Address()).Stringer("version", conn.ServerVersion()).Msg("connected to broker")
	s.unreachable = false
	s.opts.OnState(nil)
}

// report logs a failure when its reason is new and once a minute, not at every retry.
func (s *supervisor) report(err error) {
	s.failures++
	if errors.Is(err, ErrUndecodable) {
		s.undecodable++
	} else {
		s.undecodable = 0
	}
	if s.told.Due(err.Error(), time.Now()) {
		s.opts.Options.Logger.Warn().Err(err).Str("connection", s.opts.Options.Role).Msg("broker session failed, retrying")
	}
	s.opts.OnState(err)
}

// quickLimit is more than the delivery limit of any queue that `surefoot topology apply` made for work.
const quickLimit = 25

// quick says that the broker is about to give up on the message that ended the session: each delivery counts against its
// limit, and the queue stands until then.
func (s *supervisor) quick() bool { return s.undecodable > 0 && s.undecodable <= quickLimit }

// backoff is full jitter: anything from 0 to the bound, so that many clients do not come back together.
func (s *supervisor) backoff() time.Duration {
	bound := s.opts.BackoffMax
	if s.quick() {
		return rand.N(s.opts.BackoffMin) + 1
	}
	if shift := s.failures - 1; shift < 16 {
		bound = min(bound, s.opts.BackoffMin<<shift)
	}
	return rand.N(bound) + 1
}
