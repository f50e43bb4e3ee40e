package telemetry

import (
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry returns a registry of its own with the metrics of the Go runtime, the process and the build.
func NewRegistry(version string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "surefoot_build_info",
		Help:        "Always 1; the label tells the version.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build)
	return registry
}

// PoolCollector collects the figures of PostgreSQL pools, by the pool's name. It is safe for concurrent use.
type PoolCollector struct {
	mu    sync.Mutex
	pools map[string]*pgxpool.Pool

	conns, acquires, emptyAcquires, acquireSeconds *prometheus.Desc
}

// NewPoolCollector returns a collector without pools.
func NewPoolCollector() *PoolCollector {
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("surefoot_pool_"+name, help, append([]string{"pool"}, labels...), nil)
	}
	return &PoolCollector{
		pools:          map[string]*pgxpool.Pool{},
		conns:          describe("connections", "PostgreSQL connections by state; max is the limit.", "state"),
		acquires:       describe("acquires_total", "Connections taken from the pool."),
		emptyAcquires:  describe("empty_acquires_total", "Connections that had to be waited for."),
		acquireSeconds: describe("acquire_seconds_total", "Time spent waiting for connections."),
	}
}

// Add has a pool collected under a name. A second pool of one name replaces the first.
func (c *PoolCollector) Add(name string, pool *pgxpool.Pool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pools[name] = pool
}

// Describe sends the descriptions of the metrics.
func (c *PoolCollector) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{c.conns, c.acquires, c.emptyAcquires, c.acquireSeconds} {
		out <- desc
	}
}

// Collect sends the figures of now. It reads counters in memory and never the database.
func (c *PoolCollector) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, pool := range c.pools {
		stat := pool.Stat()
		gauge := func(value int32, state string) {
			out <- prometheus.MustNewConstMetric(c.conns, prometheus.GaugeValue, float64(value), name, state)
		}
		gauge(stat.AcquiredConns(), "acquired")
		gauge(stat.IdleConns(), "idle")
		gauge(stat.ConstructingConns(), "constructing")
		gauge(stat.MaxConns(), "max")
		counter := func(desc *prometheus.Desc, value float64) {
			out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, value, name)
		}
		counter(c.acquires, float64(stat.AcquireCount()))
		counter(c.emptyAcquires, float64(stat.EmptyAcquireCount()))
		counter(c.acquireSeconds, stat.AcquireDuration().Seconds())
	}
}
