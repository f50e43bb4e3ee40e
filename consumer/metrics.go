package consumer

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
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
	r := telemetry.NewRegistrar(registry)
	gauge := func(name, help string) prometheus.Gauge { return r.Gauge(name, help, "queue").WithLabelValues(queue) }
	m := &metrics{
		handled: r.Counter("surefoot_consumer_handled_total", "Deliveries that were settled, by result.", "queue", "type", "result"),
		retries: r.Counter("surefoot_consumer_retries_total", "Messages that went to the retry tier, by error class.", "queue", "class"),
		dead:    r.Counter("surefoot_consumer_dead_lettered_total", "Messages that went to the dead-letter queue, by error class.", "queue", "class"),
		seconds: r.Histogram("surefoot_consumer_handler_seconds", "Time in the handler, its transaction included.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}, "queue").WithLabelValues(queue),
		running:     gauge("surefoot_consumer_in_flight", "Messages in their handler."),
		held:        gauge("surefoot_consumer_held", "Messages received and not in their handler."),
		paused:      gauge("surefoot_consumer_paused", "1 while the queue is paused."),
		inboxBytes:  gauge("surefoot_consumer_inbox_bytes", "Size of the inbox with its indexes, shared by all queues."),
		inboxPurged: r.Counter("surefoot_consumer_inbox_purged_total", "Inbox rows removed after their retention.", "queue").WithLabelValues(queue),
		unindexed:   r.Counter("surefoot_consumer_unindexed_total", "Dead letters without a row in the index; the next scan adds it.", "queue").WithLabelValues(queue),
		queue:       queue,
		types:       map[string]struct{}{},
	}
	return m, r.Err()
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
