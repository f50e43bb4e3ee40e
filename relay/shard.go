package relay

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

const (
	// burst is how many rows are published before results are looked at again.
	burst = 256
	// retryLater is the wait before a statement that failed is tried again.
	retryLater = 500 * time.Millisecond
	// busyTick and idleTick are how often time-driven work is looked at.
	busyTick = 25 * time.Millisecond
	idleTick = 250 * time.Millisecond
)

// shard is one owned shard: the goroutine in run owns the lanes and everything else here.
type shard struct {
	id     int16
	epoch  int64
	fence  string
	until  *atomic.Int64 // the lease holds until then, in nanoseconds since relay.born
	relay  *Relay
	link   *link
	lanes  *lanes
	logger zerolog.Logger
	status func(part string, reason error)

	stop chan struct{} // closed: drain, then end

	current     session
	opening     bool
	sessions    chan session
	pages       chan answer
	replies     chan settled
	done        chan func()
	requests    chan request
	handling    map[int64]bool // requests being carried out
	asking      bool
	hungry      bool // the last page was full
	asked       ask  // the last one
	server      time.Time
	settlingNow bool
	settleSince time.Time
	settleAfter time.Time // not before, after a failure
	loaded      bool
	draining    bool
	drainBy     time.Time
	jammed      bool // the publisher has no place for the next row
	err         error

	retries  []retry
	slowFor  time.Duration // timeout of slow statements
	passing  bool
	marking  bool
	sweeping bool
	checking bool
	fetching bool
	sweepAt  time.Time
	armAt    time.Time
	expireAt time.Time
	begun    time.Time
	tellAt   time.Time
	telling  bool
	told     []stoppedRoute // the last time
	toldAll  bool           // and what the former owner told was forgotten
	results  []rabbit.Result
	errands  sync.WaitGroup
}

// retry is work to be begun again at a time.
type retry struct {
	at   time.Time
	work func(context.Context)
}

func newShard(r *Relay, of lease, fences string, l *link, until *atomic.Int64) *shard {
	id := of.shard
	return &shard{
		id: id, epoch: of.epoch, until: until, relay: r, link: l, fence: fences + strconv.Itoa(int(id)),
		lanes: newLanes(id, r.opts.Exchange, r.opts.limits()), logger: r.opts.Logger.With().Int(telemetry.FieldShard, int(id)).Logger(),
		status: func(name string, reason error) { r.health.set(part{name, int(id)}, reason) },
		stop:   make(chan struct{}), sessions: make(chan session, 1), pages: make(chan answer, 1), replies: make(chan settled, 1),
		done: make(chan func()), requests: make(chan request, requestQueue), handling: map[int64]bool{}, slowFor: slowTimeout,
	}
}

// run works until stop is closed and what was in flight is settled, until Drain has passed since, until ctx ends,
// or until the shard turns out to have another owner. Then the fence is given back.
func (s *shard) run(ctx context.Context) {
	s.link.use(1)
	defer s.link.use(-1)
	ctx, cancel := context.WithCancel(ctx)
	defer s.finish(ctx)
	defer cancel()
	defer func() {
		if s.err != nil {
			s.logger.Warn().Err(s.err).Msg("shard given up")
		}
	}()
	s.begun = time.Now()
	s.sweepAt = s.begun.Add(s.relay.opts.Sweep)
	s.load(ctx)
	s.open(ctx)
	timer := time.NewTimer(busyTick)
	defer timer.Stop()
	for s.err == nil && ctx.Err() == nil && !s.drained() {
		more := s.work(ctx)
		timer.Reset(s.tick(more))
		s.wait(ctx, timer.C)
	}
}

// finish waits for what this goroutine started and lets go of the broker.
func (s *shard) finish(ctx context.Context) {
	s.errands.Wait()
	select {
	case s.current = <-s.sessions:
	default:
	}
	if s.current.pub != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		unconfirmed := s.lanes.flying+s.lanes.overdue > 0
		if err := s.current.close(closing, s.fence, unconfirmed); err != nil {
			s.logger.Debug().Err(err).Msg("fence not given back; it goes with the connection")
		}
	}
	s.relay.stopped(s.id, nil)
	for _, part := range []string{"publish", "read", "settle", "lag", "parked", "check"} {
		s.status(part, nil)
	}
}

func (s *shard) drained() bool {
	return s.draining && (s.lanes.idle() && !s.settlingNow || time.Now().After(s.drainBy))
}

// work does what can be done now, and reports whether there is more of it.
func (s *shard) work(ctx context.Context) bool {
	now := time.Now()
	if s.overstayed() {
		s.lose(errLeaseRanOut)
		return false
	}
	s.retry(ctx, now)
	s.timed(ctx, now)
	more := s.publish()
	s.takeOut(ctx, now)
	s.askMain()
	return more
}

func (s *shard) tick(more bool) time.Duration {
	switch {
	case more:
		return 0
	case s.draining || len(s.lanes.out.settle) > 0 || len(s.lanes.shut) > 0 || len(s.lanes.gates) > 0 || len(s.retries) > 0 || len(s.lanes.parked.refs) > 0:
		return busyTick
	default:
		return idleTick
	}
}

func (s *shard) wait(ctx context.Context, tick <-chan time.Time) {
	var ready, over <-chan struct{}
	var unblocked <-chan struct{}
	if s.current.pub != nil {
		ready, over = s.current.pub.Ready(), s.current.pub.Done()
		if s.jammed {
			unblocked = s.current.conn.BlockedChanged()
		}
	}
	stop := s.stop
	if s.draining {
		stop = nil
	}
	select {
	case <-ctx.Done():
	case <-stop:
		s.draining, s.drainBy = true, time.Now().Add(s.relay.opts.Drain)
	case next := <-s.sessions:
		s.current, s.opening, s.jammed = next, false, false
	case <-ready:
		s.collect()
	case <-over:
		s.over(ctx)
	case a := <-s.pages:
		s.page(a)
	case o := <-s.replies:
		s.settled(o)
	case apply := <-s.done:
		apply()
	case q := <-s.requests:
		s.request(ctx, q)
	case <-unblocked:
		s.jammed = false
	case <-tick:
		s.jammed = false
	}
}

// errand runs work beside the shard, a few of all shards at a time, and then apply on the shard's goroutine.
func (s *shard) errand(ctx context.Context, work func(context.Context), apply func()) {
	s.errands.Go(func() {
		select {
		case s.relay.turns <- struct{}{}:
		case <-ctx.Done():
			return
		}
		work(ctx)
		<-s.relay.turns
		select {
		case s.done <- apply:
		case <-ctx.Done():
		}
	})
}

func (s *shard) later(now time.Time, work func(context.Context)) {
	s.retries = append(s.retries, retry{now.Add(retryLater), work})
}

func (s *shard) retry(ctx context.Context, now time.Time) {
	var rest []retry
	for _, r := range s.retries {
		if now.Before(r.at) {
			rest = append(rest, r)
			continue
		}
		r.work(ctx)
	}
	s.retries = rest
}

// open gets a session from the link.
func (s *shard) open(ctx context.Context) {
	if s.opening {
		return
	}
	s.opening = true // also while draining: the fence can be given back only through a channel
	o := s.relay.opts
	limits := rabbit.PublisherOptions{Window: 2*o.Window + 1, WindowBytes: 2*o.WindowBytes + 1<<27, MaxMessageBytes: o.MaxBody}
	s.errands.Go(func() {
		next, err := s.link.open(ctx, s.fence, limits, func(reason error) { s.status("publish", reason) })
		if err == nil {
			s.sessions <- next
		}
	})
}

// publish hands ready rows to the broker while the lease surely holds. It reports whether there is more to do.
func (s *shard) publish() bool {
	if s.current.pub == nil || s.draining || s.jammed || !s.loaded {
		return false
	}
	now := time.Now()
	for range burst {
		if !s.holds() {
			return false
		}
		r := s.lanes.next(now)
		if r == nil {
			return false
		}
		if !s.publishOne(r) {
			return false
		}
	}
	return true
}

// holds reports whether the lease cannot have run out, by a clock that nobody can set.
func (s *shard) holds() bool { return int64(time.Since(s.relay.born)) < s.until.Load() }

// overstayed reports whether the lease has surely run out: somebody else may own the shard, and waits for the
// fence.
func (s *shard) overstayed() bool {
	return int64(time.Since(s.relay.born)) > s.until.Load()+int64(s.relay.opts.Lease/10)
}

var errLeaseRanOut = errors.New("the lease ran out before it could be renewed")

func (s *shard) publishOne(r *row) bool {
	refused := true // by the encoder
	msg, err := r.publishing(s.epoch)
	if err == nil {
		err = s.current.pub.TryPublish(r.route.name.exchange, r.route.name.key, msg, r)
		refused = rabbit.IsRefused(err)
	}
	switch {
	case err == nil:
		s.lanes.sent(r, time.Now())
		s.err = fault.Point("relay.after-publish")
		return s.err == nil
	case refused:
		s.relay.metrics.published("refused", 1)
		s.lanes.bad(r, reasonRefused, err)
		return true
	}
	s.lanes.putBack(r)
	s.jammed = true
	return false
}

// collect takes the outcomes that are there.
func (s *shard) collect() {
	s.results = s.current.pub.Collect(s.results[:0])
	now := time.Now()
	confirmed := 0
	for _, result := range s.results {
		r, isRow := result.Token.(*row)
		if !isRow {
			continue
		}
		switch {
		case result.Outcome == rabbit.Confirmed:
			confirmed++
			s.relay.metrics.latency.Observe(r.sentAt.ago(now).Seconds())
			r.trace(now)
			s.lanes.confirmed(r)
		case result.Outcome == rabbit.Returned:
			s.relay.metrics.published("returned", 1)
			s.lanes.returnedBy(r, result.Err, now)
		case errors.Is(result.Err, rabbit.ErrNacked):
			s.relay.metrics.published("nacked", 1)
			s.lanes.nacked(r, now, result.Err)
		default: // the channel is over: see over
			s.relay.metrics.published("unknown", 1)
		}
	}
	s.relay.metrics.published("confirmed", confirmed)
	s.jammed = false
}

// over handles the end of the channel: what has no outcome is published again, and when the broker closed it
// because of a message, that one is looked for.
func (s *shard) over(ctx context.Context) {
	s.collect()
	err := s.current.pub.Err()
	code := rabbit.Code(err)
	now := time.Now()
	s.logger.Debug().Err(err).Int("unconfirmed", s.lanes.flying+s.lanes.overdue).Msg("publishing channel lost")
	s.current = session{}
	switch {
	case !accuses(err):
		s.lanes.lost(false)
	case code == amqp.NotFound && s.closeNamed(err, now):
		s.lanes.lost(false)
	default:
		alone := s.lanes.alone()
		if alone != nil {
			s.lanes.guilty(alone, code, err, now)
		}
		s.lanes.lost(alone == nil)
	}
	s.open(ctx)
}

// accuses reports whether the broker spoke of a message when it closed, as opposed to its own affairs. The library has the same codes for
// what it finds itself: a connection that was cut is its frame error, and no row's fault.
func accuses(err error) bool {
	reason, ok := errors.AsType[*amqp.Error](err)
	if !ok || !reason.Server {
		return false
	}
	switch reason.Code {
	case amqp.ContentTooLarge, amqp.AccessRefused, amqp.NotFound, amqp.PreconditionFailed,
		amqp.FrameError, amqp.SyntaxError, amqp.CommandInvalid, amqp.UnexpectedFrame, amqp.NotImplemented:
		return true
	default:
		return false
	}
}

// closeNamed stops the exchange that the broker names as missing, which saves looking for it row by row.
func (s *shard) closeNamed(err error, now time.Time) bool {
	text := err.Error()
	for _, r := range s.lanes.rows {
		if exchange := r.route.name.exchange; r.place == placeFlying && strings.Contains(text, "'"+exchange+"'") {
			s.lanes.closeExchange(exchange, err, now)
			return true
		}
	}
	return false
}

// lose gives the shard up: it has another owner.
func (s *shard) lose(err error) {
	if s.err == nil {
		s.err = err
	}
}
