package consumer

import (
	"context"
	"time"
)

// tick does what has become due: acknowledgements, and the renewal of what was held for too long.
func (l *loop) tick(ctx context.Context, now time.Time) error {
	for _, in := range l.intakes() {
		if at, some := in.acks.due(); some && !at.After(now) {
			in.acks.flush()
		}
	}
	if err := l.renew(now); err != nil { //nolint:contextcheck // moves outlive the end of ctx, until the drain is over
		return err
	}
	return l.tidy(ctx)
}

// renew sees to it that nothing is held until the broker's consumer timeout. For a pause everything goes back once,
// and nothing is held until it ends: each return costs a delivery up to 4.2. While a dependency is away the messages
// make a round through the retry tier, uncounted.
func (l *loop) renew(now time.Time) error {
	oldest := l.queue.oldest()
	if oldest.IsZero() || now.Before(oldest.Add(l.c.opts.RenewAfter)) {
		return nil
	}
	if l.c.pauses.paused() {
		if l.queue.running > 0 {
			return nil
		}
		return errResting
	}
	for l.suspension.active && len(l.queue.waiting) > 0 && len(l.c.slots) < cap(l.c.slots) {
		j := l.queue.waiting[0]
		if now.Before(j.received.Add(l.c.opts.RenewAfter)) {
			break
		}
		j.renew = true
		l.c.slots <- struct{}{} // only this goroutine takes places
		l.start(j)
	}
	return nil
}

// tidy closes old subscriptions that hold nothing any more, and widens when that is possible now.
func (l *loop) tidy(ctx context.Context) error {
	kept := l.old[:0]
	for _, in := range l.old {
		if in.acks.outstanding() == 0 || in.alive.Err() != nil {
			if err := in.sub.Close(context.WithoutCancel(ctx)); err != nil {
				l.c.log.Debug().Err(err).Msg("old subscription not closed cleanly")
			}
			continue
		}
		kept = append(kept, in)
	}
	l.old = kept
	return l.widen(ctx)
}

// wakeAt is when the loop has something to do by itself.
func (l *loop) wakeAt(now time.Time) time.Time {
	at := now.Add(time.Minute)
	earlier := func(t time.Time) {
		if t.Before(at) {
			at = t
		}
	}
	for _, in := range l.intakes() {
		if due, some := in.acks.due(); some {
			earlier(due)
		}
	}
	if !l.filling.IsZero() {
		earlier(l.filling)
	}
	if l.suspension.active && l.suspension.probing == nil && len(l.queue.waiting) > 0 {
		earlier(l.suspension.until)
	}
	if oldest := l.queue.oldest(); !oldest.IsZero() && (l.suspension.active || l.c.pauses.paused()) {
		earlier(oldest.Add(max(l.c.opts.RenewAfter, now.Sub(oldest)+time.Second)))
	}
	return at
}
