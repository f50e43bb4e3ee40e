package relay

import "github.com/prometheus/client_golang/prometheus"

// metrics of one relay. Their labels are bounded: never a key, a route or a shard.
type metrics struct {
	results *prometheus.CounterVec
	result  map[string]prometheus.Counter
	latency prometheus.Histogram
	sweeps  prometheus.Counter
	pending prometheus.Gauge
	oldest  prometheus.Gauge
	parked  prometheus.Gauge
	dead    prometheus.Gauge
	shards  prometheus.Gauge
	stopped prometheus.Gauge
}

func newMetrics() *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "surefoot_outbox_" + name, Help: help})
	}
	m := &metrics{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "surefoot_relay_published_total", Help: "Publishes by result: confirmed, returned, nacked, refused, unknown.",
		}, []string{"result"}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "surefoot_relay_confirm_seconds", Help: "Time from publish to confirm.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 30},
		}),
		sweeps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "surefoot_relay_overlooked_rows_total", Help: "Rows that only the sweep found. Anything but 0 is a bug worth reporting.",
		}),
		pending: gauge("pending_rows", "Committed rows not yet settled; an estimate above 100,000."),
		oldest:  gauge("oldest_pending_seconds", "Age of the oldest committed row not yet settled; 0 when there is none."),
		parked:  gauge("parked_rows", "Bad rows that will be tried again."),
		dead:    gauge("dead_rows", "Bad rows whose attempts are used up."),
		shards:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "surefoot_relay_shards", Help: "Shards that this process owns."}),
		stopped: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "surefoot_relay_stopped_routes", Help: "Routes, and missing exchanges, whose rows wait: surefoot outbox ls --routes. At most 500 a shard.",
		}),
	}
	m.result = map[string]prometheus.Counter{}
	for _, result := range []string{"confirmed", "returned", "nacked", "refused", "unknown"} {
		m.result[result] = m.results.WithLabelValues(result)
	}
	return m
}

func (m *metrics) register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	for _, c := range []prometheus.Collector{m.results, m.latency, m.sweeps, m.pending, m.oldest, m.parked, m.dead, m.shards, m.stopped} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

func (m *metrics) published(result string, n int) {
	if n > 0 {
		m.result[result].Add(float64(n))
	}
}

func (m *metrics) swept(n int) { m.sweeps.Add(float64(n)) }
