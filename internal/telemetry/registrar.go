package telemetry

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Registrar registers metrics that several parts of a process may share, such as two consumers: of those of one name the first is registered, and is
// everybody's. The zero value registers nothing. It is for one goroutine.
type Registrar struct {
	registry prometheus.Registerer
	err      error
}

// NewRegistrar registers with registry; nil: nowhere.
func NewRegistrar(registry prometheus.Registerer) *Registrar { return &Registrar{registry: registry} }

// Err is what was wrong with any of the metrics.
func (r *Registrar) Err() error { return r.err }

// Register returns the collector, or the one that was registered before it.
func Register[T prometheus.Collector](r *Registrar, collector T) T {
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

// Counter registers a counter.
func (r *Registrar) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	return Register(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

// Gauge registers a gauge.
func (r *Registrar) Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return Register(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

// Histogram registers a histogram.
func (r *Registrar) Histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return Register(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels))
}
