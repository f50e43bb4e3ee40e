package consumer

import (
	"context"
	"errors"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// errResting ends a loop whose queue has been paused for so long that the broker would take back what is held.
var errResting = errors.New("paused")

// loop is the one goroutine that owns what a connection has delivered: it receives, starts, settles. It begins with a
// prefetch of one: only when the first message is no suspect does it take more (see the package comment).
type loop struct {
	c          *Consumer
	conn       *rabbit.Conn
	in         *intake   // receives
	old        []*intake // receive no more, but something of theirs is still held
	queue      *queue
	suspension suspension
	innocent   bool      // a message that is no suspect has come
	filling    time.Time // until when a batch waits for more; zero: none does
	outcomes   chan []outcome
	gone       chan struct{} // closed when nobody receives outcomes any more
	timer      *time.Timer
}

func (c *Consumer) newLoop(conn *rabbit.Conn) *loop {
	return &loop{
		c: c, conn: conn, queue: newQueue(c.opts.Ordering), suspension: suspension{health: c.health, log: c.log},
		outcomes: make(chan []outcome, c.opts.Concurrency), gone: make(chan struct{}), timer: time.NewTimer(time.Hour),
	}
}

// run works until ctx ends, which it answers with a drain and nil, or until the subscription ends.
func (l *loop) run(ctx context.Context) error {
	defer close(l.gone)
	defer l.timer.Stop()
	defer func() { l.c.metrics.held.Set(0) }()
	defer l.c.health.set(partSuspend, nil)
	if err := l.subscribe(ctx, 1); err != nil {
		return err
	}
	l.c.log.Info().Int("concurrency", l.c.opts.Concurrency).Int("prefetch", l.c.opts.Prefetch).Msg("consuming")
	defer func() { l.c.log.Info().Msg("stopped consuming") }()
	for ctx.Err() == nil {
		paused := l.c.pauses.changed()
		l.startAll() //nolint:contextcheck // handlers and moves outlive the end of ctx, until the drain is over
		l.c.metrics.held.Set(float64(len(l.queue.waiting)))
		l.c.busy.Store(l.holds())
		if err := l.turn(ctx, paused); err != nil {
			return err
		}
	}
	return l.drain(ctx)
}

// turn waits for one thing to happen and answers it.
func (l *loop) turn(ctx context.Context, paused <-chan struct{}) error {
	l.timer.Reset(time.Until(l.wakeAt(time.Now())))
	select {
	case d, ok := <-l.in.sub.Deliveries():
		if !ok {
			<-l.in.sub.Done()
			return l.in.sub.Err()
		}
		return l.take(ctx, d)
	case outs := <-l.outcomes:
		l.settle(outs)
		return l.tidy(ctx)
	case <-l.timer.C:
		return l.tick(ctx, time.Now())
	case <-l.c.renewals:
		if !l.holds() {
			l.c.log.Debug().Msg("subscribing anew")
			return l.resubscribe(ctx, l.in.prefetch)
		}
	case <-paused:
	case <-l.c.freed:
	case <-ctx.Done():
	}
	return nil
}

// holds says whether anything is not settled yet.
func (l *loop) holds() bool {
	return len(l.queue.waiting) > 0 || l.queue.running > 0 || l.in.acks.outstanding() > 0 ||
		slices.ContainsFunc(l.old, func(in *intake) bool { return in.acks.outstanding() > 0 })
}

func (l *loop) intakes() []*intake { return append(slices.Clip(l.old), l.in) }

func (l *loop) subscribe(ctx context.Context, prefetch int) error {
	sub, err := l.conn.Consume(ctx, rabbit.ConsumeOptions{
		Queue: l.c.opts.Queue, Prefetch: prefetch, Tag: l.c.tag(l.c.generation.Add(1)),
	})
	if err != nil {
		return err
	}
	alive, end := context.WithCancel(context.Background())
	l.c.spawn(func() { <-sub.Done(); end() })
	l.in = &intake{sub: sub, acks: newAcks(sub, prefetch), prefetch: prefetch, alive: alive}
	l.c.health.set(partConnect, nil)
	return nil
}

// take receives a delivery. The first that is no suspect shows that nothing returned is at the head of the queue, so
// that more may be held. With lanes that waits until nothing runs: another replica may become the active consumer.
func (l *loop) take(ctx context.Context, d *amqp.Delivery) error {
	l.receive(d)
	return l.widen(ctx)
}

func (l *loop) receive(d *amqp.Delivery) {
	l.c.deliveries.Add(1)
	l.in.acks.received(d)
	j := newJob(l.in, d)
	l.innocent = l.innocent || !j.suspect
	l.queue.add(j)
}

// mayWiden says whether more may be held now.
func (l *loop) mayWiden(ctx context.Context) bool {
	return l.in.prefetch < l.c.opts.Prefetch && l.innocent && !l.suspected() && !l.c.pauses.paused() && ctx.Err() == nil &&
		(l.c.opts.Ordering != OrderLanes || l.queue.running == 0)
}

func (l *loop) widen(ctx context.Context) error {
	if !l.mayWiden(ctx) {
		return nil
	}
	return l.resubscribe(ctx, l.c.opts.Prefetch)
}

// resubscribe lets another subscription take the place of the present one, whose messages can still be settled; with lanes they go back.
func (l *loop) resubscribe(ctx context.Context, prefetch int) error {
	if l.c.opts.Ordering == OrderLanes {
		if err := l.closeInOrder(ctx); err != nil {
			return err
		}
	} else {
		if err := l.cancel(ctx); err != nil {
			return err
		}
		l.old = append(l.old, l.in)
	}
	if err := l.subscribe(ctx, prefetch); err != nil {
		return err
	}
	return l.tidy(ctx)
}

// closeInOrder gives back what is held together with the subscription itself. A cancel before it would let another
// consumer receive later messages first, and break the order of keys on a single-active-consumer queue.
func (l *loop) closeInOrder(ctx context.Context) error {
	l.flush()
	l.queue.waiting = nil
	return l.close(ctx)
}

// suspected says whether a suspect is held or runs.
func (l *loop) suspected() bool {
	for _, j := range l.queue.waiting {
		if j.suspect {
			return true
		}
	}
	return l.queue.alone
}

// cancel ends the flow of deliveries and receives what is on its way. What is held can still be settled.
func (l *loop) cancel(ctx context.Context) error {
	failed := make(chan error, 1)
	l.c.spawn(func() { failed <- l.in.sub.Cancel(context.WithoutCancel(ctx)) })
	for d := range l.in.sub.Deliveries() {
		l.receive(d)
	}
	return <-failed
}

// startAll starts what may start.
func (l *loop) startAll() {
	l.filling = time.Time{}
	for !l.c.pauses.paused() {
		if len(l.queue.waiting) == 0 || len(l.c.slots) == cap(l.c.slots) {
			return
		}
		jobs := l.gather(time.Now())
		if len(jobs) == 0 {
			return
		}
		select {
		case l.c.slots <- struct{}{}:
			l.start(jobs...)
		default:
			return
		}
	}
}

func (l *loop) next(now time.Time) *job {
	if !l.suspension.active {
		return l.queue.next()
	}
	if !l.suspension.mayProbe(now) {
		return nil
	}
	j := l.queue.probe()
	l.suspension.probing = j
	return j
}

// start gives one place to jobs that run together.
func (l *loop) start(jobs ...*job) {
	for _, j := range jobs {
		l.queue.start(j)
		l.c.metrics.running.Inc()
	}
	if len(jobs) == 1 {
		l.c.lend(func() { l.c.work(jobs[0], l.outcomes, l.gone) })
		return
	}
	l.c.lend(func() { l.c.workBatch(jobs, l.outcomes, l.gone) })
}

// settle answers the end of jobs that ran together. A batch is acknowledged at once, for the next one needs its room,
// unless an earlier one still runs: soon one acknowledgement can stand for both.
func (l *loop) settle(outs []outcome) {
	for _, out := range outs {
		l.queue.ended(out.job)
		l.c.metrics.running.Dec()
	}
	now := time.Now()
	for _, out := range outs {
		l.conclude(out, now)
	}
	for _, out := range outs {
		if acks := out.job.from.acks; acks.done > 0 && (l.queue.running == 0 || acks.done >= acks.limit) {
			acks.flush()
			_ = l.c.opts.step("after-ack")
		} else if acks.done > 0 && len(outs) > 1 {
			acks.flushPrefix()
		}
	}
}

// conclude answers the end of one job.
func (l *loop) conclude(out outcome, now time.Time) {
	if out.action == actHold || out.action == actSingly {
		out.job.single = true
		l.queue.back(out.job)
	}
	if out.action == actHold {
		l.suspension.begin(out, now)
		return
	}
	l.suspension.end(out.job)
	if out.job.over() {
		return
	}
	acks, tag := out.job.from.acks, out.job.delivery.DeliveryTag
	switch out.action {
	case actAck:
		acks.finish(tag, now)
	case actReturn:
		acks.giveBack(tag)
	case actDiscarded:
		acks.discard(tag)
	case actDrop, actHold, actSingly, actRetry, actDead: // it stays unacknowledged
	}
}
