package idempotency

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// metrics of all stores of one registry.
type metrics struct {
	requests               *prometheus.CounterVec
	purged                 prometheus.Counter
	bytes, pending, oldest prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	r := telemetry.NewRegistrar(registry)
	gauge := func(name, help string) prometheus.Gauge { return r.Gauge(name, help).WithLabelValues() }
	m := &metrics{
		requests: r.Counter("surefoot_idempotency_requests_total", "Requests with an idempotency key, by result.", "result"),
		purged:   r.Counter("surefoot_idempotency_purged_total", "Keys removed after their retention.").WithLabelValues(),
		bytes:    gauge("surefoot_idempotency_bytes", "Size of the table of keys with its indexes."),
		pending:  gauge("surefoot_idempotency_pending", "Requests whose outcome is not known yet."),
		oldest:   gauge("surefoot_idempotency_pending_oldest_seconds", "Age of the oldest request whose outcome is not known yet; 0: there is none."),
	}
	return m, r.Err()
}

func (m *metrics) count(result string) { m.requests.WithLabelValues(result).Inc() }
