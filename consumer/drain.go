package consumer

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// drain ends the loop in order: no more deliveries, what was not started goes back, what runs ends, acknowledgements
// go out.
func (l *loop) drain(ctx context.Context) error {
	if l.c.opts.Ordering != OrderLanes {
		if err := l.cancel(ctx); err != nil {
			return fmt.Errorf("cancel subscription: %w", err)
		}
		l.giveBackWaiting()
	}
	if !l.finishRunning() {
		return nil // with the connection everything goes back
	}
	if l.c.opts.Ordering == OrderLanes {
		return l.closeInOrder(ctx)
	}
	l.flush()
	return l.close(ctx)
}

// finishRunning receives the outcomes of what runs. It gives up when the drain is over and the last returns have had
// their time.
func (l *loop) finishRunning() bool {
	over := l.c.moves.Done()
	l.timer.Stop()
	var deliveries <-chan *amqp.Delivery
	if l.c.opts.Ordering == OrderLanes { // they still come, and go back with the subscription
		deliveries = l.in.sub.Deliveries()
	}
	for l.queue.running > 0 {
		select {
		case outs := <-l.outcomes:
			l.settle(outs)
			if l.c.opts.Ordering != OrderLanes {
				l.giveBackWaiting() // it was held
			}
			l.flush()
		case d, ok := <-deliveries:
			if !ok {
				<-l.in.sub.Done()
				return false
			}
			l.receive(d)
		case <-over:
			over = nil
			l.timer.Reset(moveGrace)
		case <-l.timer.C:
			l.c.log.Error().Int("running", l.queue.running).Str(telemetry.FieldReason, "they ignore their context").Msg("handlers still run after the drain")
			return false
		}
	}
	return true
}

// release gives everything back and closes the subscriptions, while nothing runs.
func (l *loop) release(ctx context.Context) error {
	if l.c.opts.Ordering == OrderLanes {
		return l.closeInOrder(ctx)
	}
	if err := l.cancel(ctx); err != nil {
		return err
	}
	l.giveBackWaiting()
	l.flush()
	return l.close(ctx)
}

func (l *loop) giveBackWaiting() {
	l.queue.dropDead()
	for _, j := range l.queue.waiting {
		j.from.acks.giveBack(j.delivery.DeliveryTag)
	}
	l.queue.waiting = nil
}

func (l *loop) flush() {
	for _, in := range l.intakes() {
		in.acks.flush()
	}
}

func (l *loop) close(ctx context.Context) error {
	var errs []error
	for _, in := range l.intakes() {
		errs = append(errs, in.sub.Close(context.WithoutCancel(ctx)))
	}
	l.old = nil
	return errors.Join(errs...)
}
