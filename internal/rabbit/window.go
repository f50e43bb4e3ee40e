package rabbit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// flight is one publish from entering the window to its outcome.
type flight struct {
	token         any
	outcome       chan Result // set for PublishConfirmed, which takes its outcome itself; has room for it
	exchange, key string
	id            string
	body          []byte

	confirm  *amqp.DeferredConfirmation // nil while the write is under way
	returned *ReturnedError
	resolved bool // its confirm is there, or its write failed
	cause    error
	landed   bool // its outcome was given
}

// window is the set of publishes in flight, in the order of their writes, and the outcomes not yet collected.
type window struct {
	maxCount, maxBytes int
	readySignal        chan struct{} // has a value when there may be results

	mu      sync.Mutex
	flights []*flight // in the order of writing; the first has not landed, later ones may have
	ready   []Result
	count   int   // places taken: flying, or not yet collected
	bytes   int   // body bytes flying
	end     error // set: no more publishes, and why

	freed    chan struct{} // closed when a place becomes free; nil when nobody waits
	emptied  chan struct{} // closed when nothing flies any more; nil when nobody waits
	activity chan struct{} // closed when a write ended; nil when nobody waits
}

func (w *window) init(count, size int) {
	w.maxCount, w.maxBytes = count, size
	w.readySignal = make(chan struct{}, 1)
}

// enter takes a place. With none free it returns a channel that is closed when one may be; with the window shut, the reason.
func (w *window) enter(f *flight) (full <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end != nil {
		return nil, w.end
	}
	if w.count >= w.maxCount || w.bytes > 0 && w.bytes+len(f.body) > w.maxBytes {
		return wait(&w.freed), nil
	}
	w.count++
	w.bytes += len(f.body)
	w.flights = append(w.flights, f)
	return nil, nil
}

// wait returns the channel at *signal, made when it is missing.
func wait(signal *chan struct{}) <-chan struct{} {
	if *signal == nil {
		*signal = make(chan struct{})
	}
	return *signal
}

// wake closes the channel at *signal, if somebody waits for it.
func wake(signal *chan struct{}) {
	if *signal != nil {
		close(*signal)
		*signal = nil
	}
}

// sent notes the confirm of a finished write.
func (w *window) sent(f *flight, confirm *amqp.DeferredConfirmation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f.confirm = confirm
	wake(&w.activity)
}

// failed notes that a write failed: the outcome is unknown.
func (w *window) failed(f *flight, cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f.resolved, f.cause = true, cause
	wake(&w.activity)
}

// head returns the confirm of the oldest flight, or a channel that is closed when a write has ended, and whether anything flies.
func (w *window) head() (confirm, activity <-chan struct{}, flying bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.flights) == 0 {
		return nil, wait(&w.activity), false
	}
	switch first := w.flights[0]; {
	case first.resolved:
		return closedChannel(), nil, true
	case first.confirm != nil:
		return first.confirm.Done(), nil, true
	default:
		return nil, wait(&w.activity), true
	}
}

func closedChannel() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// sweep gives outcomes: to the oldest flights up to the first unresolved one, or, with all, to every resolved one, which one slow queue at the head then
// does not hold back. A return precedes the confirm of its message, so the order here is what pairs them: first look which
// confirms are there, then take all returns, then judge. The library turns all confirms false when the channel ends; those wait for the sweep that
// knows the reason, end.
func (w *window) sweep(returns <-chan amqp.Return, all bool, end error, over func() bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	resolved := w.markResolved(all)
	w.matchReturns(returns)
	for _, f := range w.flights[:resolved] {
		if !f.resolved || f.landed || end == nil && f.refused() && over() {
			continue
		}
		w.land(f, end)
	}
	w.dropLanded(all)
	if len(w.ready) > 0 {
		select {
		case w.readySignal <- struct{}{}:
		default:
		}
	}
	if len(w.flights) == 0 {
		wake(&w.emptied)
	}
}

// markResolved returns how many flights it has looked at.
func (w *window) markResolved(all bool) int {
	for i, f := range w.flights {
		if !f.resolved && f.confirm != nil {
			select {
			case <-f.confirm.Done():
				f.resolved = true
			default:
			}
		}
		if !f.resolved && !all {
			return i
		}
	}
	return len(w.flights)
}

// matchReturns takes all returns that are there. They come in the order of the writes, so the search goes on where the last one ended.
func (w *window) matchReturns(returns <-chan amqp.Return) {
	from := 0
	for {
		select {
		case r, ok := <-returns:
			if !ok {
				return
			}
			from = w.matchReturn(r, from)
		default:
			return
		}
	}
}

// matchReturn notes r on the oldest flight it can belong to. A return carries no number, but the whole message: flights alike in route, id and body
// are copies of one message, of which at least as many are safe as are reported confirmed.
func (w *window) matchReturn(r amqp.Return, from int) int {
	for n := range w.flights {
		i := (from + n) % len(w.flights)
		f := w.flights[i]
		if f.landed || f.returned != nil || f.id != r.MessageId || f.key != r.RoutingKey || f.exchange != r.Exchange || !bytes.Equal(f.body, r.Body) {
			continue
		}
		f.returned = &ReturnedError{Code: int(r.ReplyCode), Text: r.ReplyText, Exchange: r.Exchange, RoutingKey: r.RoutingKey}
		return i + 1
	}
	return from
}

func (w *window) land(f *flight, end error) {
	f.landed = true
	result := f.result(end)
	w.bytes -= len(f.body)
	f.body = nil
	if f.outcome != nil {
		w.count--
		f.outcome <- result
	} else {
		w.ready = append(w.ready, result)
	}
	wake(&w.freed)
}

// refused says that the confirm is false, by a nack or the end of the channel, or that the channel was over before the write.
func (f *flight) refused() bool {
	return f.returned == nil && (f.confirm != nil && !f.confirm.Acked() || f.late())
}

// late says that the channel was over before the write: the library's error does not tell why, the end of the publisher does.
func (f *flight) late() bool { return errors.Is(f.cause, amqp.ErrClosed) }

// result judges a resolved flight. A return is final whatever followed it. A false confirm means a nack or the end of the channel; end tells which.
func (f *flight) result(end error) Result {
	switch {
	case f.returned != nil:
		return Result{f.token, Returned, f.returned}
	case f.cause != nil && (end == nil || !f.late()):
		return Result{f.token, Unknown, f.cause}
	case f.cause == nil && f.confirm.Acked():
		return Result{f.token, Confirmed, nil}
	case end != nil:
		return Result{f.token, Unknown, fmt.Errorf("rabbit: outcome of the publish unknown: %w", end)}
	default:
		return Result{f.token, Unknown, ErrNacked}
	}
}

// dropLanded forgets landed flights: those at the front, or all.
func (w *window) dropLanded(all bool) {
	if all {
		kept := w.flights[:0]
		for _, f := range w.flights {
			if !f.landed {
				kept = append(kept, f)
			}
		}
		clear(w.flights[len(kept):])
		w.flights = kept
		return
	}
	n := 0
	for n < len(w.flights) && w.flights[n].landed {
		w.flights[n] = nil
		n++
	}
	w.flights = w.flights[n:]
}

func (w *window) collect(dst []Result) []Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.ready) == 0 {
		return dst
	}
	dst = append(dst, w.ready...)
	w.count -= len(w.ready)
	clear(w.ready)
	w.ready = w.ready[:0]
	wake(&w.freed)
	return dst
}

func (w *window) inFlight() (messages, size int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count, w.bytes
}

// shut lets no more publishes in; the first reason stays.
func (w *window) shut(reason error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.end == nil {
		w.end = reason
	}
	wake(&w.freed)
}

func (w *window) ended() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.end
}

// drained waits until nothing flies.
func (w *window) drained(ctx context.Context) error {
	w.mu.Lock()
	if len(w.flights) == 0 {
		w.mu.Unlock()
		return nil
	}
	emptied := wait(&w.emptied)
	w.mu.Unlock()
	select {
	case <-emptied:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("rabbit: publishes still in flight: %w", ctx.Err())
	}
}
