package watchdog

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	overdue, oldest, failing, held *prometheus.GaugeVec
	cancelled, failures            *prometheus.CounterVec
	errors                         *prometheus.CounterVec
	seconds                        prometheus.Histogram
	lastSuccess                    prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	make := promauto.With(reg)
	rule := []string{"rule"}
	return &metrics{
		overdue: make.NewGaugeVec(prometheus.GaugeOpts{
			Name: "surefoot_saga_overdue", Help: "Rows over their limit at the end of the last cycle, counted up to 10000.",
		}, rule),
		oldest: make.NewGaugeVec(prometheus.GaugeOpts{
			Name: "surefoot_saga_oldest_overdue_seconds", Help: "How long the oldest overdue row has been over its limit; 0: none is.",
		}, rule),
		failing: make.NewGaugeVec(prometheus.GaugeOpts{
			Name: "surefoot_watchdog_failing", Help: "Rows recorded as failed and waiting for their next try, counted up to 10000.",
		}, rule),
		held: make.NewGaugeVec(prometheus.GaugeOpts{
			Name: "surefoot_watchdog_held", Help: "Rows that operators have extended or skipped, counted up to 10000.",
		}, rule),
		cancelled: make.NewCounterVec(prometheus.CounterOpts{
			Name: "surefoot_saga_cancelled_total", Help: "Rows changed by the watchdog.",
		}, rule),
		failures: make.NewCounterVec(prometheus.CounterOpts{
			Name: "surefoot_watchdog_failures_total", Help: "Tries to change a row that failed.",
		}, rule),
		errors: make.NewCounterVec(prometheus.CounterOpts{
			Name: "surefoot_watchdog_errors_total", Help: "Cycles of a rule that broke off.",
		}, rule),
		seconds: make.NewHistogram(prometheus.HistogramOpts{
			Name: "surefoot_watchdog_cycle_seconds", Help: "Time of a cycle over all rules.",
			Buckets: []float64{.005, .02, .1, .5, 2, 10, 60},
		}),
		lastSuccess: make.NewGauge(prometheus.GaugeOpts{
			Name: "surefoot_watchdog_last_success_timestamp_seconds", Help: "When a cycle last ended without an error.",
		}),
	}
}
