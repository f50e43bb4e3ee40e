package rabbit

import (
	"bytes"
	"context"
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
	returned      *ReturnedError
	landed        bool // its outcome was given
}

// window is the set of publishes in flight, in the order of their writes, and the outcomes not yet collected.
type window struct {
	maxCount, maxBytes int
	readySignal        chan struct{} // has a value when there may be results
	returns            <-chan amqp.Return

	mu      sync.Mutex
	flights []flight // in the order of writing; those before head are gone
	head    int
	next    uint64 // delivery tag of the next flight: the broker counts from 1
	ready   []Result
	count   int   // places taken: flying, or not yet collected
	bytes   int   // body bytes flying
	end     error // set: no more publishes, and why

	freed   chan struct{} // closed when a place becomes free; nil when nobody waits
	emptied chan struct{} // closed when nothing flies any more; nil when nobody waits
}

func (w *window) init(count, size int, returns <-chan amqp.Return) {
	w.maxCount, w.maxBytes, w.returns, w.next = count, size, returns, 1
	w.readySignal = make(chan struct{}, 1)
}

// enter takes a place. With none free it returns a channel that is closed when one may be; with the window shut, the reason.
func (w *window) enter(f flight) (full <-chan struct{}, err error) {
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
	w.next++
	if w.head > len(w.flights)/2 { // rather than to let the slice grow for ever
		n := copy(w.flights, w.flights[w.head:])
		clear(w.flights[n:])
		w.flights, w.head = w.flights[:n], 0
	}
	w.flights = append(w.flights, f)
	return nil, nil
}

// leave takes back the last flight, of which nothing was written. False: the publisher has ended meanwhile and its outcome was given.
func (w *window) leave() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.flights) - 1
	if last < w.head {
		return false
	}
	w.count--
	w.bytes -= len(w.flights[last].body)
	w.next--
	w.flights[last] = flight{}
	w.flights = w.flights[:last]
	wake(&w.freed)
	w.signal()
	return true
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

// confirmed gives the outcome of the publish with a delivery tag or, with multiple, of all up to it (0: of all). A return precedes the confirm of
// its message, so all returns are taken first.
func (w *window) confirmed(tag uint64, multiple, done bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takeReturns()
	first := w.next - uint64(len(w.flights)-w.head)
	if multiple && tag == 0 {
		tag = w.next - 1
	}
	if tag < first || tag >= w.next {
		return
	}
	last := w.head + int(tag-first)
	from := last
	if multiple {
		from = w.head
	}
	for i := from; i <= last; i++ {
		w.land(&w.flights[i], done, nil)
	}
	w.forgetLanded()
	w.signal()
}

// returned takes the returns that are there.
func (w *window) returned() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takeReturns()
}

// finish gives all that fly their outcome, and lets no more in.
func (w *window) finish(end error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takeReturns()
	if w.end == nil {
		w.end = end
	}
	for i := w.head; i < len(w.flights); i++ {
		w.land(&w.flights[i], false, end)
	}
	w.flights, w.head = nil, 0
	wake(&w.freed)
	w.signal()
}

func (w *window) signal() {
	if len(w.ready) > 0 {
		select {
		case w.readySignal <- struct{}{}:
		default:
		}
	}
	if w.head == len(w.flights) {
		wake(&w.emptied)
	}
}

// takeReturns takes all returns that are there. They come in the order of the writes, so the search goes on where the last one ended.
func (w *window) takeReturns() {
	from := 0
	for {
		select {
		case r, ok := <-w.returns:
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
	flying := w.flights[w.head:]
	for n := range flying {
		i := (from + n) % len(flying)
		f := &flying[i]
		if f.landed || f.returned != nil || f.id != r.MessageId || f.key != r.RoutingKey || f.exchange != r.Exchange || !bytes.Equal(f.body, r.Body) {
			continue
		}
		f.returned = &ReturnedError{Code: int(r.ReplyCode), Text: r.ReplyText, Exchange: r.Exchange, RoutingKey: r.RoutingKey}
		return i + 1
	}
	return from
}

// land gives a flight its outcome, unless it has one.
func (w *window) land(f *flight, done bool, end error) {
	if f.landed {
		return
	}
	w.bytes -= len(f.body)
	result := f.result(done, end)
	if f.outcome != nil {
		w.count--
		f.outcome <- result
	} else {
		w.ready = append(w.ready, result)
	}
	*f = flight{landed: true}
	wake(&w.freed)
}

// result judges a flight. A return is final whatever followed it.
func (f *flight) result(done bool, end error) Result {
	switch {
	case f.returned != nil:
		return Result{f.token, Returned, f.returned}
	case done:
		return Result{f.token, Confirmed, nil}
	case end != nil:
		return Result{f.token, Unknown, fmt.Errorf("rabbit: outcome of the publish unknown: %w", end)}
	default:
		return Result{f.token, Unknown, ErrNacked}
	}
}

// forgetLanded forgets the landed flights at the front.
func (w *window) forgetLanded() {
	for w.head < len(w.flights) && w.flights[w.head].landed {
		w.head++
	}
	if w.head == len(w.flights) {
		w.flights, w.head = w.flights[:0], 0
	}
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

func (w *window) reason() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.end
}

// drained waits until nothing flies.
func (w *window) drained(ctx context.Context) error {
	w.mu.Lock()
	if w.head == len(w.flights) {
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
