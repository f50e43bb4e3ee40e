package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	// maxWindow keeps a prefetch of twice the window within what the protocol can say.
	maxWindow = 30_000
	// maxPrefetch is the protocol's largest prefetch.
	maxPrefetch = 65_535
	// peekSize is how many letters tell how large they are.
	peekSize = 32
	// maxGenerations is how many consumers of one channel may hold messages. The broker gives back those of up
	// to 32 in the order of their tags, of more in any order (measured on 3.10 and 4.0).
	maxGenerations = 31
	// idleLimit is how long the broker may deliver nothing although the queue has messages.
	idleLimit = 30 * time.Second
	// idleCheck is how long nothing has to come before the queue is looked up.
	idleCheck = 250 * time.Millisecond
	// emptyLimit is how long a queue must be found empty before what has not come is taken to be somebody else's.
	emptyLimit = 5 * time.Second
	// settleRounds: the first makes the broker take up what it kept back, the second carries that out, one more to be sure.
	settleRounds = 3
	// returnLimit is how long nothing may come back of what is given back, and returnEach adds to it for each letter.
	returnLimit = 10 * time.Second
	returnEach  = 200 * time.Microsecond
	// returnSoon bounds the wait for what an ended connection held.
	returnSoon = 3 * time.Second
	// returnPoll is how often a closing walker looks whether its letters are back.
	returnPoll = 5 * time.Millisecond
)

// walker receives a queue from its head, in order. What is not acknowledged goes back, in order, when it is
// closed; until then nobody else sees it. One goroutine uses it.
//
// A prefetch counts held letters too, and cannot be changed for a consumer that exists. When all of it is held, the consumer is
// cancelled, which keeps its letters unacknowledged, and another one continues on the same channel: a generation. Each is as large as
// what was seen allows by its size, and no larger unless what is to come would not fit into the few generations which the broker gives
// back in order: it reads all of a prefetch before it sends the first letter (3.10), which of 65,535 took it over half a minute on a busy
// machine.
//
// The broker keeps letters that were given back once in front of the others, and appends there what is given back again: a look
// that takes only a part of them would put that part behind the rest (measured on 3.10 and 4.0). So close receives on until it has
// all of them. A process that dies before it has received all of them can therefore reorder the queue; it loses nothing.
type walker struct {
	conn    *rabbit.Conn
	dial    func(context.Context, string) (*rabbit.Conn, error)
	eye     *rabbit.Conn // see empty; nil: not needed yet
	channel *rabbit.Channel
	queue   string
	ahead   readAhead
	need    int // letters that will be asked for, at most
	found   int // letters in the queue at the start
	closes  <-chan *amqp.Error
	cancels <-chan string

	deliveries <-chan *amqp.Delivery
	generation int  // number of the present one, from 1
	holding    int  // earlier generations that hold something
	prefetch   int  // of the present one
	held       int  // of the present one
	retired    bool // cancelled; the rest of its letters still comes
	heldBefore int  // held by earlier ones
	before     int  // received by earlier ones
	ackedNow   int  // of the present one

	total, acked int  // of all generations
	bytes        int  // of what was received
	fresh        bool // a letter came that was never given back before
	dead         error
}

// readAhead is how much the broker may send ahead.
type readAhead struct{ letters, bytes int }

func (d *DeadLetters) readAhead() readAhead { return readAhead{2 * d.opts.Window, d.opts.ReadAhead} }

// prefetch for letters of that mean size in bytes.
func (r readAhead) prefetch(mean int) int {
	return max(min(r.letters, r.bytes/max(mean, 1)), min(r.letters, peekSize))
}

// openWalker starts to receive; need is the most letters that will be asked for. With a prefetch of 0 the first letters tell
// how many may come ahead.
func (d *DeadLetters) openWalker(ctx context.Context, conn *rabbit.Conn, queue string, prefetch, need int) (*walker, error) {
	there, err := inspect(ctx, conn, queue)
	if err != nil {
		return nil, missing(err, queue, ErrNoDLQ)
	}
	channel, err := conn.Channel(ctx)
	if err != nil {
		return nil, err
	}
	w := &walker{
		conn: conn, dial: d.connect, channel: channel, queue: queue, ahead: d.readAhead(), need: need, found: there.Messages,
		prefetch: max(1, min(cmp.Or(prefetch, peekSize), need)),
	}
	err = channel.Do(ctx, "watch channel", func(ch *amqp.Channel) error {
		w.closes = ch.NotifyClose(make(chan *amqp.Error, 1))
		w.cancels = ch.NotifyCancel(make(chan string, 1))
		return nil
	})
	if err == nil {
		err = w.next(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, channel.Close(context.WithoutCancel(ctx)))
	}
	return w, nil
}

// peek returns the mean size of the first letters, by a look of its own: a prefetch cannot be changed when letters are let go
// meanwhile. If all of the queue was given back before, it has to receive all of it: see takeReturned.
func (d *DeadLetters) peek(ctx context.Context, conn *rabbit.Conn, queue string) (mean int, err error) {
	w, err := d.openWalker(ctx, conn, queue, peekSize, peekSize)
	if err != nil {
		return 0, err
	}
	err = w.each(ctx, peekSize, func(*amqp.Delivery) bool { return true })
	mean = w.mean()
	return mean, errors.Join(err, w.close(ctx))
}

// sizeOf is about what a letter takes in memory.
func sizeOf(d *amqp.Delivery) int { return len(d.Body) + message.TableSize(d.Headers) + 256 }

// mean size of what was received, in bytes.
func (w *walker) mean() int { return w.bytes / max(w.total, 1) }

// next starts a generation. The tags sort in the order of the generations; the broker relies on that.
func (w *walker) next(ctx context.Context) (err error) {
	if w.held > 0 {
		w.holding++
	}
	w.heldBefore += w.held
	if w.holding >= maxGenerations {
		return fmt.Errorf("%w: %d; choose with fewer filters, or move the oldest ones first with --max", ErrTooManyHeld, w.heldBefore)
	}
	if w.generation++; w.generation > 1 {
		left := maxGenerations - w.holding
		fit := (w.need - w.total + left - 1) / left
		w.prefetch = min(max(w.ahead.prefetch(w.mean()), fit), maxPrefetch)
	}
	w.held, w.before, w.ackedNow, w.retired = 0, w.total, 0, false
	w.deliveries, err = w.channel.Consume(ctx, rabbit.ConsumeOptions{Queue: w.queue, Tag: w.tag(), Prefetch: w.prefetch})
	return err
}

func (w *walker) tag() string { return fmt.Sprintf("surefoot-dlq-%06d", w.generation) }

// got notes a delivery. It must be called for each.
func (w *walker) got(d *amqp.Delivery) {
	w.total++
	w.bytes += sizeOf(d)
	w.fresh = w.fresh || !d.Redelivered
}

// hold keeps the last delivery until the walker is closed. A generation ends when it holds all of its prefetch; never before, for
// then acknowledgements may be on their way, and a consumer that is cancelled before they arrive returns its letters
// in another order (measured on 3.10 and 4.0).
func (w *walker) hold(ctx context.Context) error {
	w.held++
	if w.held >= w.prefetch && w.need-w.before > w.prefetch {
		return w.retire(ctx)
	}
	return nil
}

func (w *walker) retire(ctx context.Context) error {
	if w.retired {
		return nil
	}
	w.retired = true
	return w.channel.Do(ctx, "cancel consumer", func(ch *amqp.Channel) error { return ch.Cancel(w.tag(), false) })
}

// exhausted is to be called when deliveries are closed: it goes on with the next generation, or says why there is none.
func (w *walker) exhausted(ctx context.Context) error {
	if w.dead != nil {
		return w.dead
	}
	if w.retired {
		select {
		case reason := <-w.closes:
			w.dead = w.ended(reason)
		default:
			w.dead = w.next(ctx)
		}
		return w.dead
	}
	select {
	case _, cancelled := <-w.cancels: // closed with the channel
		if cancelled {
			w.dead = fmt.Errorf("receive from %q: %w", w.queue, rabbit.ErrServerCancelled)
			return w.dead
		}
		w.dead = w.ended(<-w.closes)
	case reason := <-w.closes:
		w.dead = w.ended(reason)
	}
	return w.dead
}

// over says that nothing comes any more, because the channel or the connection has ended.
func (w *walker) over() bool { return w.dead != nil }

func (w *walker) ended(reason *amqp.Error) error {
	if reason != nil && reason.Server {
		return fmt.Errorf("receive from %q: channel closed by the broker: %w", w.queue, reason)
	}
	<-w.conn.Done() // without a reason of the broker it is the end of the connection
	return fmt.Errorf("receive from %q: %w", w.queue, w.conn.Err())
}

// empty says whether the broker has nothing left to deliver. It asks by a connection of its own if it can: on the walker's the answer
// comes behind all that is on its way, which has to be kept in memory then.
func (w *walker) empty(ctx context.Context) (bool, error) {
	if w.eye == nil {
		var err error
		if w.eye, err = w.dial(ctx, "dlq"); err != nil {
			w.eye = w.conn
		}
	}
	q, err := inspect(ctx, w.eye, w.queue)
	return q.Messages == 0, err
}

// ack lets go of a delivery. Its tag belongs to the channel, whichever generation received it.
func (w *walker) ack(tag uint64) error {
	err := w.channel.Ack(tag)
	if err == nil {
		w.acked++
		if tag > uint64(w.before) { // tags count the channel's deliveries
			w.ackedNow++
		}
	}
	return err
}

// outstanding is what the present generation has received and not acknowledged.
func (w *walker) outstanding() int { return w.total - w.before - w.ackedNow }

// settle waits until the broker has carried out every acknowledgement. A quorum queue's channel keeps those that are
// too many at once to itself, and forgets them when it is closed: letters already moved would be back (measured on 3.10 and
// 4.0). Two things prove it: the consumer has no place left although letters were acknowledged; or the queue is empty, and
// a basic.get has said so, which the broker answers in the order of the queue's log.
func (w *walker) settle(ctx context.Context) error {
	if w.acked == 0 || w.over() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, rpcLimit+time.Duration(w.total)*returnEach) // so that one answer may take its time
	defer cancel()
	for rounds := 0; rounds < settleRounds; {
		w.receiveReady(ctx)
		if w.outstanding() >= w.prefetch {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		q, err := inspect(ctx, w.conn, w.queue)
		if err != nil {
			return err
		}
		if q.Messages > 0 { // these come as soon as the acknowledgements have made places for them
			continue
		}
		if err := w.getNothing(ctx); err != nil {
			return err
		}
		rounds++
	}
	return nil
}

// receiveReady takes what has come, until nothing comes for a moment: the library hands deliveries over one by one, so that
// none is ready at once after another.
func (w *walker) receiveReady(ctx context.Context) {
	quiet := time.NewTimer(returnPoll)
	defer quiet.Stop()
	deliveries := w.deliveries
	for w.outstanding() < w.prefetch {
		select {
		case d, ok := <-deliveries:
			if !ok {
				deliveries = nil // the pause stays: this is asked again
				continue
			}
			w.got(d)
			w.held++
			quiet.Reset(returnPoll)
		case <-quiet.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (w *walker) getNothing(ctx context.Context) error {
	return w.channel.Do(ctx, "settle", func(ch *amqp.Channel) error {
		d, ok, err := ch.Get(w.queue, false)
		if ok {
			w.got(&d) // it has just come; it is held like the others
		}
		return err
	})
}

// takeReturned receives on until everything is here that was ever given back; see walker. Redelivered tells.
func (w *walker) takeReturned(ctx context.Context) error {
	if w.fresh || w.total >= w.found || w.over() {
		return nil
	}
	w.need = w.found
	w.held = w.outstanding() // nothing is on its way any more
	if w.held >= w.prefetch {
		if err := w.retire(ctx); err != nil {
			return err
		}
	}
	return w.each(ctx, w.found-w.total, func(*amqp.Delivery) bool { return !w.fresh })
}

// close gives back what is held. The broker does so a moment after it has answered; close waits for that, within bounds, so that
// whoever looks next finds everything in its place: a redrive that begins before its letters are back would take them to be gone.
func (w *walker) close(ctx context.Context) (err error) {
	defer func() {
		if w.eye != nil && w.eye != w.conn {
			err = errors.Join(err, w.eye.Close())
		}
	}()
	select {
	case <-w.conn.Done():
		return nil // the broker gives them back by itself
	default:
	}
	ctx = context.WithoutCancel(ctx)
	err = w.takeReturned(ctx)
	if err = errors.Join(err, w.settle(ctx), w.channel.Close(ctx)); err != nil {
		return fmt.Errorf("give back what was held: %w", err)
	}
	return w.awaitReturn(ctx)
}

func (w *walker) awaitReturn(ctx context.Context) error {
	limit := returnLimit + time.Duration(w.total-w.acked)*returnEach
	back, since := -1, time.Now()
	for {
		q, err := inspect(ctx, w.conn, w.queue)
		if err != nil || q.Messages >= w.found-w.acked {
			return err
		}
		if q.Messages > back { // as long as letters come, the others will
			back, since = q.Messages, time.Now()
		}
		if time.Since(since) > limit || !pause.For(ctx, returnPoll) {
			return nil // somebody else takes from the queue; nothing of ours is missing
		}
	}
}

// each visits up to n letters from the head and holds them all. It ends early when visit says so or when the
// queue has no more.
func (w *walker) each(ctx context.Context, n int, visit func(*amqp.Delivery) (more bool)) error {
	ended := ctx
	ctx = context.WithoutCancel(ctx) // an interrupted request would cost the connection
	idle := idleWatch{since: time.Now()}
	ticker := time.NewTicker(idleCheck)
	defer ticker.Stop()
	for seen := 0; seen < n; {
		select {
		case d, ok := <-w.deliveries:
			if !ok {
				if err := w.exhausted(ctx); err != nil {
					return err
				}
				continue
			}
			seen++
			idle.moved()
			w.got(d)
			if !visit(d) {
				w.held++
				return nil
			}
			if err := w.hold(ctx); err != nil {
				return err
			}
		case <-ticker.C:
			if over, err := idle.over(ctx, w); over || err != nil {
				return err
			}
		case <-ended.Done():
			return context.Cause(ended)
		}
	}
	return nil
}

// idleWatch finds out that nothing comes any more.
type idleWatch struct {
	since time.Time
	empty bool
}

func (i *idleWatch) moved() { i.since, i.empty = time.Now(), false }

// over says whether the queue was found empty twice with no delivery in between, for so long that nothing can be on its
// way to us: a letter that is on its way is not counted by the broker any more. It fails when the queue has messages
// that do not come.
func (i *idleWatch) over(ctx context.Context, w *walker) (bool, error) {
	if time.Since(i.since) < idleCheck {
		return false, nil
	}
	empty, err := w.empty(ctx)
	switch {
	case err != nil:
		return false, missing(err, w.queue, ErrNoDLQ)
	case empty && i.empty && time.Since(i.since) > emptyLimit:
		return true, nil
	case !empty && time.Since(i.since) > idleLimit:
		return false, fmt.Errorf("%w from %s for %s although it has messages: is another consumer alone on it?", ErrNothingComes, w.queue, idleLimit)
	}
	i.empty = empty
	return false, nil
}
