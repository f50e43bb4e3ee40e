package policy

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/surefoot-mq/surefoot/resilience"
)

// Results of calls in metrics, besides the classes of failed ones.
const (
	resultDone   = "done"
	resultOpen   = "circuit-open"
	resultFull   = "bulkhead-full"
	resultShare  = "tenant-share"
	resultWaited = "bulkhead-wait"
	resultEnded  = "too-late" // its context had ended, or would have before an attempt
)

// metrics of one dependency. Those of all dependencies share their names.
type metrics struct {
	name     string
	calls    *prometheus.CounterVec
	attempts *prometheus.CounterVec
	shedding *prometheus.CounterVec
	seconds  prometheus.Observer
	circuit  prometheus.Gauge
	active   prometheus.Gauge
	queued   prometheus.Gauge
	limit    prometheus.Gauge
	retries  prometheus.Counter
	late     prometheus.Counter
	bytes    prometheus.Gauge

	done, first prometheus.Counter // the most frequent ones, looked up once
}

func newMetrics(registry prometheus.Registerer, name string) (*metrics, error) {
	r := &registrar{registry: registry}
	m := &metrics{
		name:     name,
		calls:    r.counter("surefoot_calls_total", "Calls to a dependency, by result: done, the class of the failure, or why it was not made.", "dependency", "result"),
		attempts: r.counter("surefoot_call_attempts_total", "Attempts of calls, by class of the error; none is a success.", "dependency", "class"),
		shedding: r.counter("surefoot_calls_shed_total", "Calls that were refused to protect the dependency or this process, by reason.", "dependency", "reason"),
		retries:  r.counter("surefoot_call_retries_total", "Attempts after the first.", "dependency").WithLabelValues(name),
		late:     r.counter("surefoot_budget_exceeded_total", "Calls that failed because the operation's time was used up.", "dependency").WithLabelValues(name),
		seconds: register(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "surefoot_call_seconds", Help: "Time of calls: their turn, attempts and waits.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"dependency"})).WithLabelValues(name),
		circuit: r.gauge("circuit_breaker_state", "State of the circuit to a dependency: 0 closed, 1 half-open, 2 open; the worst of its instances.").WithLabelValues(name),
		active:  r.gauge("surefoot_bulkhead_active", "Calls that have a place.").WithLabelValues(name),
		queued:  r.gauge("surefoot_bulkhead_queued", "Calls that wait for a place.").WithLabelValues(name),
		limit:   r.gauge("surefoot_bulkhead_limit", "Places for calls to a dependency.").WithLabelValues(name),
		bytes:   r.gauge("surefoot_circuit_snapshots_bytes", "Size of the table of circuit snapshots, shared by all dependencies.").WithLabelValues(name),
	}
	m.done, m.first = m.calls.WithLabelValues(name, resultDone), m.attempts.WithLabelValues(name, "none")
	return m, r.err
}

func (m *metrics) took(d time.Duration) { m.seconds.Observe(d.Seconds()) }

func (m *metrics) result(result string) {
	if result == resultDone {
		m.done.Inc()
		return
	}
	m.calls.WithLabelValues(m.name, result).Inc()
}

func (m *metrics) attempt(class resilience.Class) {
	if class == resilience.ClassNone {
		m.first.Inc()
		return
	}
	m.attempts.WithLabelValues(m.name, string(class)).Inc()
}

func (m *metrics) shed(reason string) { m.shedding.WithLabelValues(m.name, reason).Inc() }

func (m *metrics) state(s State) { m.circuit.Set(float64(s)) }

func (m *metrics) places(active, queued int) {
	m.active.Set(float64(active))
	m.queued.Set(float64(queued))
}

// registrar registers metrics, or takes those that another policy of the process has registered.
type registrar struct {
	registry prometheus.Registerer
	err      error
}

func register[T prometheus.Collector](r *registrar, collector T) T {
	if r.registry == nil {
		return collector
	}
	err := r.registry.Register(collector)
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := there.ExistingCollector.(T); ok {
			return same
		}
	}
	r.err = errors.Join(r.err, err)
	return collector
}

func (r *registrar) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return register(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

func (r *registrar) gauge(name, help string) *prometheus.GaugeVec {
	return register(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"dependency"}))
}
