package idempotency

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of all stores of one registry.
type metrics struct {
	requests               *prometheus.CounterVec
	purged                 prometheus.Counter
	bytes, pending, oldest prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "surefoot_idempotency_requests_total", Help: "Requests with an idempotency key, by result.",
		}, []string{"result"}),
		purged:  prometheus.NewCounter(prometheus.CounterOpts{Name: "surefoot_idempotency_purged_total", Help: "Keys removed after their retention."}),
		bytes:   gauge("surefoot_idempotency_bytes", "Size of the table of keys with its indexes."),
		pending: gauge("surefoot_idempotency_pending", "Requests whose outcome is not known yet."),
		oldest:  gauge("surefoot_idempotency_pending_oldest_seconds", "Age of the oldest request whose outcome is not known yet; 0: there is none."),
	}
	if registry == nil {
		return m, nil
	}
	return m, errors.Join(register(registry, &m.requests), register(registry, &m.purged), register(registry, &m.bytes),
		register(registry, &m.pending), register(registry, &m.oldest))
}

// register takes the metric of another store of the process when there is one.
func register[T prometheus.Collector](registry prometheus.Registerer, collector *T) error {
	err := registry.Register(*collector)
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := there.ExistingCollector.(T); ok {
			*collector = same
			return nil
		}
	}
	return err
}

func (m *metrics) count(result string) { m.requests.WithLabelValues(result).Inc() }
