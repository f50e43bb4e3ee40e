package policy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
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
	r := telemetry.NewRegistrar(registry)
	gauge := func(metric, help string) prometheus.Gauge {
		return r.Gauge(metric, help, "dependency").WithLabelValues(name)
	}
	m := &metrics{
		name:     name,
		calls:    r.Counter("surefoot_calls_total", "Calls to a dependency, by result: done, the class of the failure, or why it was not made.", "dependency", "result"),
		attempts: r.Counter("surefoot_call_attempts_total", "Attempts of calls, by class of the error; none is a success.", "dependency", "class"),
		shedding: r.Counter("surefoot_calls_shed_total", "Calls that were refused to protect the dependency or this process, by reason.", "dependency", "reason"),
		retries:  r.Counter("surefoot_call_retries_total", "Attempts after the first.", "dependency").WithLabelValues(name),
		late:     r.Counter("surefoot_budget_exceeded_total", "Calls that failed because the operation's time was used up.", "dependency").WithLabelValues(name),
		seconds: r.Histogram("surefoot_call_seconds", "Time of calls: their turn, attempts and waits.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}, "dependency").WithLabelValues(name),
		circuit: gauge("circuit_breaker_state", "State of the circuit to a dependency: 0 closed, 1 half-open, 2 open; the worst of its instances."),
		active:  gauge("surefoot_bulkhead_active", "Calls that have a place."),
		queued:  gauge("surefoot_bulkhead_queued", "Calls that wait for a place."),
		limit:   gauge("surefoot_bulkhead_limit", "Places for calls to a dependency."),
		bytes:   gauge("surefoot_circuit_snapshots_bytes", "Size of the table of circuit snapshots, shared by all dependencies."),
	}
	m.done, m.first = m.calls.WithLabelValues(name, resultDone), m.attempts.WithLabelValues(name, "none")
	return m, r.Err()
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
