package consumer

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/surefoot-mq/surefoot/message"
)

// maxTypes bounds the values of the label type, which come from messages.
const maxTypes = 50

// metrics of one queue's consumer.
type metrics struct {
	handled     *prometheus.CounterVec
	retries     *prometheus.CounterVec
	dead        *prometheus.CounterVec
	seconds     prometheus.Observer
	running     prometheus.Gauge
	held        prometheus.Gauge
	paused      prometheus.Gauge
	inboxBytes  prometheus.Gauge
	inboxPurged prometheus.Counter
	unindexed   prometheus.Counter

	queue string
	mu    sync.Mutex
	types map[string]struct{}
}

func newMetrics(registry prometheus.Registerer, queue string) (*metrics, error) {
	r := &registrar{registry: registry}
	m := &metrics{
		handled: r.counter("handled_total", "Deliveries that were settled, by result.", "queue", "type", "result"),
		retries: r.counter("retries_total", "Messages that went to the retry tier, by error class.", "queue", "class"),
		dead:    r.counter("dead_lettered_total", "Messages that went to the dead-letter queue, by error class.", "queue", "class"),
		seconds: register(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "surefoot_consumer_handler_seconds", Help: "Time in the handler, its transaction included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"queue"})).WithLabelValues(queue),
		running:     r.gauge("in_flight", "Messages in their handler.").WithLabelValues(queue),
		held:        r.gauge("held", "Messages received and not in their handler.").WithLabelValues(queue),
		paused:      r.gauge("paused", "1 while the queue is paused.").WithLabelValues(queue),
		inboxBytes:  r.gauge("inbox_bytes", "Size of the inbox with its indexes, shared by all queues.").WithLabelValues(queue),
		inboxPurged: r.counter("inbox_purged_total", "Inbox rows removed after their retention.", "queue").WithLabelValues(queue),
		unindexed:   r.counter("unindexed_total", "Dead letters without a row in the index; the next scan adds it.", "queue").WithLabelValues(queue),
		queue:       queue,
		types:       map[string]struct{}{},
	}
	return m, r.err
}

// settled counts a delivery that was settled with result.
func (m *metrics) settled(eventType, result string) {
	m.handled.WithLabelValues(m.queue, m.typeLabel(eventType), result).Inc()
}

func (m *metrics) took(d time.Duration) { m.seconds.Observe(d.Seconds()) }

// typeLabel keeps the first types seen and calls the rest "other".
func (m *metrics) typeLabel(eventType string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, known := m.types[eventType]; known {
		return message.Clip(eventType, 64)
	}
	if len(m.types) >= maxTypes {
		return "other"
	}
	m.types[eventType] = struct{}{}
	return message.Clip(eventType, 64)
}

// registrar registers metrics, or takes those that another consumer of the process has registered.
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
	return register(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "surefoot_consumer_" + name, Help: help}, labels))
}

func (r *registrar) gauge(name, help string) *prometheus.GaugeVec {
	return register(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "surefoot_consumer_" + name, Help: help}, []string{"queue"}))
}
