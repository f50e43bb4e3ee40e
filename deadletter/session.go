package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// drainLimit is how long an operation that stops waits for the answers that are due. It ends well before another
// could take the lock.
const drainLimit = 10 * time.Second

// session is the part of an operation that one channel sees: it receives from the head, lets chosen letters go, and
// gives back the rest at its end. One goroutine runs it.
type session struct {
	*operation
	walker *walker
	// publisher and its connection are of their own: an alarm that stops publishes must not stop acknowledgements. Nil
	// for a discard.
	publisher *rabbit.Publisher
	pubConn   *rabbit.Conn

	began    time.Time
	expected int // letters of the start that this session will see
	seen     int
	left     Left

	waiting   *letter // chosen, waits for its turn
	onTheWay  int     // sent or to be recorded, not yet let go
	settled   []settlement
	recording bool
	keptBytes int // of bodies on their way into the archive
	recorded  chan recordResult
	pace      pace

	closing bool  // nothing new is begun
	cause   error // why, nil when all is done
	rotate  bool  // another session goes on

	continued bool // an earlier session was rotated
	drain     <-chan time.Time

	lastAnswer time.Time
	idle       idleWatch
}

// letter is a chosen letter before it is sent.
type letter struct {
	facts
	delivery *amqp.Delivery
}

// session runs one and says whether another has to follow.
func (o *operation) session(ctx context.Context) (again bool, err error) {
	now := time.Now()
	s := &session{
		operation: o, continued: o.sessions > 0, began: now, expected: o.remaining, lastAnswer: now, idle: idleWatch{since: now},
		recorded: make(chan recordResult, 1), pace: newPace(o.request.Rate),
	}
	if o.verb == verbRedrive {
		if err := s.openPublisher(ctx); err != nil {
			return false, err
		}
		defer func() { err = errors.Join(err, s.pubConn.Close()) }()
	}
	o.held.reset() // this session sees again what an earlier one has passed over
	if s.walker, err = o.walk(ctx); err != nil {
		return false, missing(err, o.names.dlq, ErrNoDLQ)
	}
	o.sessions++
	s.loop(ctx)
	err = fault.Point(string(o.verb) + ".before-close")
	err = errors.Join(s.cause, err, s.walker.close(ctx))
	o.result.Left = s.left
	return s.rotate && err == nil, err
}

func (s *session) openPublisher(ctx context.Context) (err error) {
	if s.pubConn, err = s.d.connect(ctx, "redrive"); err != nil {
		return err
	}
	s.publisher, err = s.pubConn.Publisher(ctx, rabbit.PublisherOptions{Window: s.d.opts.Window})
	if err != nil {
		return errors.Join(err, s.pubConn.Close())
	}
	return nil
}

// loop ends when everything is done, or stopping, and nothing is on its way any more.
func (s *session) loop(ctx context.Context) {
	ticker := time.NewTicker(idleCheck)
	defer ticker.Stop()
	ready, over := s.publisherSignals()
	ended := ctx.Done()
	// An interrupted request would cost the connection, and with it the acknowledgements that are due. Each is bounded.
	work := context.WithoutCancel(ctx)
	for {
		s.advance(work)
		if s.closing && s.waiting == nil && s.onTheWay == 0 && !s.recording && len(s.settled) == 0 {
			s.tell()
			if !s.goOn(ctx) {
				return
			}
			continue
		}
		select {
		case d, ok := <-s.source():
			s.receive(work, d, ok)
		case <-ready:
			s.collect(work)
		case <-over:
			over = nil
			s.collect(work)
			s.stop(s.publisher.Err())
		case result := <-s.recorded:
			s.letGo(result)
		case <-s.turn():
		case <-ticker.C:
			s.tick(work)
		case <-s.drain:
			s.abort()
		case <-ended:
			ended = nil
			s.stop(context.Cause(ctx))
		}
	}
}

func (s *session) publisherSignals() (ready, over <-chan struct{}) {
	if s.publisher == nil {
		return nil, nil
	}
	return s.publisher.Ready(), s.publisher.Done()
}

// source is where the next letter comes from; nil while none can be taken.
func (s *session) source() <-chan *amqp.Delivery {
	if s.closing || s.waiting != nil || s.onTheWay >= s.d.opts.Window || len(s.settled) >= s.d.opts.Window || s.keptBytes > s.d.opts.ReadAhead {
		s.idle.moved()
		return nil
	}
	return s.walker.deliveries
}

// goOn says whether more is wanted, when all is done that was. A prefetch larger than a wave would leave it open whether
// acknowledgements of the last two waves were carried out.
func (s *session) goOn(ctx context.Context) bool {
	if s.cause != nil || s.rotate || s.more == nil || s.seen >= s.expected || s.walker.prefetch > restWave || ctx.Err() != nil {
		return false
	}
	more, err := s.more(ctx)
	s.cause, s.closing = err, !more
	s.idle.moved()
	return more
}

// stop begins nothing new. The first reason stays; nil means that all is done.
func (s *session) stop(cause error) {
	if s.cause == nil {
		s.cause = cause
	}
	if s.closing && s.drain != nil {
		return
	}
	s.closing = true
	if cause != nil {
		s.drain = time.After(drainLimit)
	}
	s.waiting = nil // it stays where it is
}

// abort gives up on answers that do not come: their outcome is unknown.
func (s *session) abort() {
	if s.pubConn != nil {
		s.pubConn.Abort(ErrNoConfirm)
	}
}

func (s *session) receive(ctx context.Context, d *amqp.Delivery, ok bool) {
	if !ok {
		if err := s.walker.exhausted(ctx); err != nil {
			s.stop(err)
		}
		return
	}
	s.seen++
	s.idle.moved()
	s.walker.got(d)
	f := factsOf(d, s.names)
	got, detail := s.choose(&f, d.Body)
	if got == outcomeConfirmed {
		s.onTheWay++
		s.settled = append(s.settled, settlement{facts: f, outcome: got, release: true})
		return
	}
	if got != outcomeChosen {
		s.keep(ctx, &f, got, detail)
		return
	}
	s.waiting = &letter{facts: f, delivery: d}
}

// keep leaves a letter where it is and counts why.
func (s *session) keep(ctx context.Context, f *facts, o outcome, detail string) {
	s.left.count(o)
	// A session that goes on sees again what the first one has told already.
	if o != outcomeUnmatched && !s.continued {
		s.settled = append(s.settled, settlement{facts: *f, outcome: o, detail: detail})
		s.result.note(f, o, detail)
	}
	if err := s.walker.hold(ctx); err != nil {
		s.stop(err)
	}
}

// advance does what can be done without waiting.
func (s *session) advance(ctx context.Context) {
	if s.waiting != nil {
		s.begin(ctx)
	}
	if s.waiting == nil && !s.closing && s.finished() {
		s.stop(nil)
	}
	if !s.recording && len(s.settled) > 0 {
		s.startRecording(ctx)
	}
}

// finished says that every letter of the start was seen, or that enough are chosen.
func (s *session) finished() bool {
	return s.seen >= s.expected || s.request.Max > 0 && s.result.Done+s.onTheWay >= s.request.Max
}

// turn is when the waiting letter may go; nil when none waits for that.
func (s *session) turn() <-chan time.Time {
	if s.waiting == nil {
		return nil
	}
	return s.pace.turn()
}

// begin sends the waiting letter on its way when it is its turn.
func (s *session) begin(ctx context.Context) {
	if !s.pace.take() {
		return
	}
	l := s.waiting
	if s.verb == verbDiscard {
		s.waiting = nil
		s.onTheWay++
		s.keptBytes += len(l.delivery.Body)
		s.settled = append(s.settled, settlement{facts: l.facts, outcome: outcomeDiscarded, release: true, kept: l.delivery})
		return
	}
	s.publish(ctx, l)
}

func (s *session) publish(ctx context.Context, l *letter) {
	if err := fault.Point("redrive.before-publish"); err != nil {
		s.stop(err)
		return
	}
	p := republishing(l.delivery, &l.facts, s.names, s.chooser.run, time.Now())
	f := l.facts
	err := s.publisher.TryPublish("", s.names.work, p, &f)
	switch {
	case err == nil:
		s.waiting = nil
		s.onTheWay++
		if s.onTheWay == 1 {
			s.lastAnswer = time.Now()
		}
		if err := fault.Point("redrive.after-publish"); err != nil {
			s.stop(err)
		}
	case errors.Is(err, rabbit.ErrWindowFull):
		s.pace.giveBack()
	case rabbit.IsRefused(err):
		s.waiting = nil
		s.keep(ctx, &f, outcomeRefused, err.Error())
	default:
		s.stop(err)
	}
}

// collect takes the broker's answers. Whatever is not a confirm stops the run: going on would change the order, and most likely
// fail again.
func (s *session) collect(ctx context.Context) {
	for _, r := range s.publisher.Collect(nil) {
		s.lastAnswer = time.Now()
		f := r.Token.(*facts)
		if r.Outcome == rabbit.Confirmed {
			s.settled = append(s.settled, settlement{facts: *f, outcome: outcomeRedriven, release: true})
			if err := fault.Point("redrive.after-confirm"); err != nil {
				s.stop(err)
			}
			continue
		}
		s.onTheWay--
		o, cause := failure(r, s.names.work)
		s.keep(ctx, f, o, r.Err.Error())
		s.stop(cause)
	}
}

func failure(r rabbit.Result, queue string) (outcome, error) {
	switch {
	case r.Outcome == rabbit.Returned:
		return outcomeReturned, fmt.Errorf("%w: %s was there at the start; everything not yet moved stays in the dead-letter queue", ErrNoQueue, queue)
	case errors.Is(r.Err, rabbit.ErrNacked):
		return outcomeNacked, fmt.Errorf("%w: is %s full? Let its consumers catch up, then run this again", ErrRefusedByQueue, queue)
	default:
		return outcomeUnknown, r.Err
	}
}

func (s *session) tick(ctx context.Context) {
	s.tell()
	if blocked := s.blocked(); blocked || s.onTheWay == 0 {
		s.lastAnswer = time.Now()
	}
	if s.publisher != nil && time.Since(s.lastAnswer) > s.d.opts.ConfirmTimeout {
		s.stop(fmt.Errorf("%w: %s", ErrNoConfirm, s.d.opts.ConfirmTimeout))
		s.abort()
	}
	if s.closing {
		return
	}
	if time.Since(s.began) > s.d.opts.SessionLimit {
		s.rotate = true
		s.stop(nil)
		return
	}
	if over, err := s.idle.over(ctx, s.walker); over || err != nil {
		s.stop(err)
	}
}

func (s *session) blocked() bool {
	if s.pubConn == nil {
		return false
	}
	blocked, _ := s.pubConn.Blocked()
	return blocked
}

func (s *session) tell() {
	if s.request.Progress != nil {
		s.request.Progress(Progress{
			Found: s.result.Found, Seen: s.result.Found - s.expected + s.seen, Done: s.result.Done, Blocked: s.blocked(),
		})
	}
}
