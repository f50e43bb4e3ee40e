package rabbit

import (
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// stragglerInterval is how often all flights are looked at while the oldest has no confirm: often enough that a slow queue does not delay
// the outcomes of others, seldom enough to cost nothing. A look costs some 25 ns a flight, so each flight adds to the interval: a full window
// on a slow broker would spend more CPU on looking than on publishing.
const (
	stragglerInterval  = 5 * time.Millisecond
	stragglerPerFlight = 20 * time.Microsecond
)

// resolve gives every flight its outcome. It waits for the oldest one's confirm, and ends when the channel is over and nothing flies.
func (p *Publisher) resolve() {
	defer close(p.done)
	defer telemetry.FatalOnPanic(p.conn.opts.Logger)
	stragglers := time.NewTimer(stragglerInterval)
	defer stragglers.Stop()
	for {
		confirm, activity, flying := p.window.head()
		var tick <-chan time.Time
		if flying {
			count, _ := p.window.inFlight()
			stragglers.Reset(stragglerInterval + time.Duration(count)*stragglerPerFlight)
			tick = stragglers.C
		}
		select {
		case <-confirm:
			p.window.sweep(p.returns, false, nil, p.ch.IsClosed)
		case <-activity:
		case <-tick:
			p.window.sweep(p.returns, true, nil, p.ch.IsClosed)
		case reason := <-p.closes:
			p.finish(reason)
			return
		}
		if p.ch.IsClosed() {
			p.finish(<-p.closes)
			return
		}
	}
}

// finish gives the rest their outcomes. The library resolves all confirms when a channel ends, and writes under way fail, so this ends.
func (p *Publisher) finish(reason *amqp.Error) {
	end := p.endReason(reason)
	p.window.shut(end)
	for {
		confirm, activity, flying := p.window.head()
		if !flying {
			return
		}
		select {
		case <-confirm:
		case <-activity:
		}
		p.window.sweep(p.returns, true, end, p.ch.IsClosed)
	}
}

// endReason says why the channel is over. Without a reason of the broker it is the end of the connection, unless Close was called.
func (p *Publisher) endReason(reason *amqp.Error) error {
	if reason != nil && reason.Server {
		return fmt.Errorf("rabbit: publishing channel closed by the broker: %w", reason)
	}
	if closed := p.window.ended(); closed != nil {
		return closed
	}
	<-p.conn.done
	return p.conn.Err()
}
