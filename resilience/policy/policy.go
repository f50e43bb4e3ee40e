package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Options of a policy.
type Options struct {
	// Name of the dependency, in errors, metrics, logs and snapshots: 1 to 64 letters, digits, dots, dashes and underscores.
	// Required.
	Name string
	// Settings are its limits. Default: the defaults of each.
	Settings resilience.Settings
	// Classifier knows errors that the built-in rules do not; ClassNone leaves them to those. Default: none.
	Classifier resilience.Classifier
	// Pool of the database that [Policy.Run] writes snapshots to. Default: none, no snapshots.
	Pool Database
	// Schema that `surefoot migrate up` made. Default: "surefoot".
	Schema string
	// Host names this process in snapshots. Default: "unknown".
	Host string
	// Logger takes a warning for each transition, retry and refusal; at most ten a second of each, the rest is counted in the
	// next line. Default: none.
	Logger zerolog.Logger
	// Metrics registry; policies of one process may share it. Default: none.
	Metrics prometheus.Registerer
}

// Database is what snapshots need: a pool, or a connection.
type Database interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// nameForm keeps names fit for metric labels.
func nameForm() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`) }

// Policy guards the calls to one dependency. It is safe for concurrent use; there must be one per dependency and process, for
// its places and its circuit are counted in it.
type Policy struct {
	name     string
	settings resilience.Settings
	classify resilience.Classifier
	options  Options
	log      eventLog
	metrics  *metrics
	bulkhead *bulkhead
	breakers *breakers
	changed  chan struct{} // a transition is to be written
	showing  sync.Mutex    // keeps the metric at the last state
}

// New returns a policy, or an error with every fault of the options. It does no I/O. Settings that will not do what they seem
// to are logged as warnings.
func New(o Options) (*Policy, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	o.Host = cmp.Or(o.Host, "unknown")
	m, err := newMetrics(o.Metrics, o.Name)
	if err != nil {
		return nil, fmt.Errorf("policy of %s: register metrics: %w", o.Name, err)
	}
	log := o.Logger.With().Str("dependency", o.Name).Logger()
	for _, warning := range o.Settings.Warnings() {
		log.Warn().Str("warning", warning).Msg("settings of dependency")
	}
	p := &Policy{
		name: o.Name, settings: o.Settings.WithDefaults(), classify: resilience.With(), options: o, log: eventLog{log: log},
		metrics: m, changed: make(chan struct{}, 1),
	}
	if o.Classifier != nil {
		p.classify = resilience.With(o.Classifier)
	}
	p.bulkhead = newBulkhead(p.settings.Bulkhead, m.places)
	p.breakers = newBreakers(p.settings.Breaker, p.transition)
	m.limit.Set(float64(p.settings.Bulkhead.Active))
	return p, nil
}

func (o Options) validate() error {
	var faults []error
	if !nameForm().MatchString(o.Name) {
		faults = append(faults, fmt.Errorf("policy: Name is %.80q; use 1 to 64 letters, digits, dots, dashes and underscores", o.Name))
	}
	if err := o.Settings.Validate(); err != nil {
		faults = append(faults, fmt.Errorf("policy of %.80q: %w", o.Name, err))
	}
	faults = append(faults, pg.CheckSchema(o.Schema))
	return errors.Join(faults...)
}

// Name is the dependency's name.
func (p *Policy) Name() string { return p.name }

// Settings are the limits in force, defaults filled in.
func (p *Policy) Settings() resilience.Settings { return p.settings }

// Call says what is called.
type Call struct {
	// Idempotent says that the function may run several times for one effect: it reads, or it sends an idempotency key that is
	// the same in each attempt. Only such calls are retried.
	Idempotent bool
	// Tenant on whose behalf it is made, for the bulkhead's shares. Default: "", which has a share like any other.
	Tenant string
	// Instance of the dependency, for a breaker of its own; see [resilience.Breaker]. Default: "".
	Instance string
	// Recovery marks work that repairs (asks for an unknown outcome, releases, compensates): it may use the bulkhead's reserve.
	Recovery bool
}

// Do calls fn: when a place is free, unless the circuit is open, with a timeout for each attempt, and again after failures that
// pass, as long as the budget of ctx and the settings allow. The context that fn gets must be obeyed: the place stays taken
// until fn returns. Its deadline is that of the attempt; see [resilience.SetTimeoutHeader].
//
// A nil error of fn is a success, also when it came late. Any other failure is an [*Error]. fn marks what is an answer and no
// ailment with [resilience.Permanent]: it is not retried and does not open the circuit. A panic of fn passes through.
func (p *Policy) Do(ctx context.Context, c Call, fn func(ctx context.Context) error) error {
	began := time.Now()
	deadline := began.Add(p.settings.Deadline)
	if outer, limited := ctx.Deadline(); limited && outer.Before(deadline) {
		deadline = outer
	}
	err := p.guarded(ctx, c, deadline, fn)
	p.metrics.took(time.Since(began))
	if err == nil {
		p.metrics.result(resultDone)
		return nil
	}
	return p.failed(err)
}

// guarded goes through bulkhead and breaker. The deadline is that of the call, never later than that of ctx.
func (p *Policy) guarded(ctx context.Context, c Call, deadline time.Time, fn func(ctx context.Context) error) *Error {
	if end := resilience.Ended(ctx); end != nil {
		return p.refused(ctx, end, resultEnded, 0)
	}
	b := p.breakers.of(c.Instance)
	state, open := b.state()
	if state == Open {
		return p.refused(ctx, errOpen, resultOpen, open)
	}
	place, err := p.bulkhead.enter(ctx, deadline, c.Tenant, c.Recovery || state == HalfOpen)
	if err != nil {
		return p.notEntered(ctx, err)
	}
	defer p.bulkhead.leave(place)
	permit, open, ok := b.enter()
	if !ok {
		return p.refused(ctx, errOpen, resultOpen, open)
	}
	r := run{policy: p, call: c, breaker: b, deadline: deadline}
	defer func() { permit.leave(r.verdict, r.why) }() // the first time counts; this one is for panics
	failed := r.all(ctx, fn)
	permit.leave(r.verdict, r.why)
	if failed != nil && permit.probe && r.verdict == sick {
		failed.knownAway(b)
	}
	return failed
}

// knownAway makes the failure of a probe what it is for the work that made it: no fault of that work, for the dependency was known
// to be away, and is still.
func (e *Error) knownAway(b *breaker) {
	_, open := b.state()
	e.Err, e.Class = resilience.Unavailable(e.Err), resilience.ClassUnavailable
	e.After = max(e.After, open)
}

// errOpen is failsafe-go's, for which the classification is unavailable.
var errOpen = circuitbreaker.ErrOpen

// overloadHint is when it makes sense to call again after the bulkhead was full.
const overloadHint = time.Second

func (p *Policy) notEntered(ctx context.Context, err error) *Error {
	switch {
	case errors.Is(err, errFull):
		return p.refused(ctx, err, resultFull, overloadHint)
	case errors.Is(err, errShare):
		return p.refused(ctx, err, resultShare, overloadHint)
	case errors.Is(err, errWaited):
		return p.refused(ctx, err, resultWaited, overloadHint)
	}
	return p.refused(ctx, err, resultEnded, 0)
}

// refused is the end of a call that was not made.
func (p *Policy) refused(ctx context.Context, err error, result string, after time.Duration) *Error {
	p.metrics.result(result)
	if result != resultEnded {
		p.metrics.shed(result)
		p.log.shed(ctx, err, result, after)
	}
	return &Error{Dependency: p.name, Class: p.classify(err), Effect: EffectNone, After: after, Err: err, code: codeOf(err, false)}
}

// failed completes the error of a call.
func (p *Policy) failed(e *Error) error {
	if e.Called() {
		p.metrics.result(string(e.Class))
	}
	if errors.Is(e.Err, resilience.ErrDeadline) {
		p.metrics.late.Inc()
	}
	return e
}

// codeOf names a failure for whoever called this service.
func codeOf(err error, answered bool) resilience.Code {
	switch {
	case errors.Is(err, resilience.ErrTimeout):
		return resilience.CodeDependencyUnavailable
	case errors.Is(err, resilience.ErrDeadline), errors.Is(err, resilience.ErrCancelled):
		return resilience.CodeDeadlineExceeded
	}
	if code := resilience.CodeOf(err); code != resilience.CodeInternal || !answered {
		return code
	}
	return resilience.CodeDependencyError
}

// State is that of the circuit; of the worst one where instances have their own.
func (p *Policy) State() State { return p.breakers.worst() }

// Circuits returns the state of each breaker.
func (p *Policy) Circuits() []Circuit { return p.breakers.look() }

// Places returns how many calls hold a place, and how many wait for one.
func (p *Policy) Places() (active, queued int) { return p.bulkhead.look() }

// transition is told of every change of a circuit.
func (p *Policy) transition(t transition) {
	p.showing.Lock()
	p.metrics.state(p.breakers.worst())
	p.showing.Unlock()
	p.log.transition(t, p.settings.Breaker)
	select {
	case p.changed <- struct{}{}:
	default: // Run is told already
	}
}

// Circuit is the state of a breaker.
type Circuit struct {
	// Instance it belongs to; "" is the whole dependency.
	Instance string
	State    State
	// Since is when it came into this state; zero: it has never changed.
	Since time.Time
	// Failures that are counted.
	Failures int
	// OpenFor is how long no call is let through yet.
	OpenFor time.Duration
	// Reason is the last failure that counted.
	Reason string
}

// mostInstances bounds the breakers kept per instance. The one used longest ago gives way.
const mostInstances = 64

// breakers are those of a dependency: one, or one per instance.
type breakers struct {
	settings resilience.Breaker
	changed  func(transition)
	whole    *breaker

	mu        sync.Mutex
	instances map[string]*breaker
}

func newBreakers(s resilience.Breaker, changed func(transition)) *breakers {
	return &breakers{settings: s, changed: changed, whole: newBreaker("", s, changed), instances: map[string]*breaker{}}
}

func (b *breakers) of(instance string) *breaker {
	if instance == "" || !b.settings.PerInstance {
		return b.whole
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	found := b.instances[instance]
	if found == nil {
		b.makeRoom()
		found = newBreaker(instance, b.settings, b.changed)
		b.instances[instance] = found
	}
	return found
}

func (b *breakers) makeRoom() {
	if len(b.instances) < mostInstances {
		return
	}
	oldest, at := "", time.Time{}
	for name, one := range b.instances {
		if used := one.lastUsed(); oldest == "" || used.Before(at) {
			oldest, at = name, used
		}
	}
	delete(b.instances, oldest)
}

func (b *breakers) all() []*breaker {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := []*breaker{b.whole}
	for _, one := range b.instances {
		list = append(list, one)
	}
	return list
}

func (b *breakers) worst() State {
	worst := Closed
	for _, one := range b.all() {
		worst = max(worst, one.look().State)
	}
	return worst
}

func (b *breakers) look() []Circuit {
	var list []Circuit
	for _, one := range b.all() {
		list = append(list, one.look())
	}
	return list
}
