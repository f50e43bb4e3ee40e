package watchdog

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

type metrics struct {
	overdue, oldest, failing, held *prometheus.GaugeVec
	cancelled, failures            *prometheus.CounterVec
	errors                         *prometheus.CounterVec
	seconds                        prometheus.Observer
	lastSuccess                    prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	r := telemetry.NewRegistrar(registry)
	m := &metrics{
		overdue:     r.Gauge("surefoot_saga_overdue", "Rows over their limit at the end of the last cycle, counted up to 10000.", "rule"),
		oldest:      r.Gauge("surefoot_saga_oldest_overdue_seconds", "How long the oldest overdue row has been over its limit; 0: none is.", "rule"),
		failing:     r.Gauge("surefoot_watchdog_failing", "Rows recorded as failed and waiting for their next try, counted up to 10000.", "rule"),
		held:        r.Gauge("surefoot_watchdog_held", "Rows that operators have extended or skipped, counted up to 10000.", "rule"),
		cancelled:   r.Counter("surefoot_saga_cancelled_total", "Rows changed by the watchdog.", "rule"),
		failures:    r.Counter("surefoot_watchdog_failures_total", "Tries to change a row that failed.", "rule"),
		errors:      r.Counter("surefoot_watchdog_errors_total", "Cycles of a rule that broke off.", "rule"),
		seconds:     r.Histogram("surefoot_watchdog_cycle_seconds", "Time of a cycle over all rules.", []float64{.005, .02, .1, .5, 2, 10, 60}).WithLabelValues(),
		lastSuccess: r.Gauge("surefoot_watchdog_last_success_timestamp_seconds", "When a cycle last ended without an error.").WithLabelValues(),
	}
	return m, r.Err()
}
