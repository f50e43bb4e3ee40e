package reconcile

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	suspects, oldest, unanswered *prometheus.GaugeVec
	lastSuccess, interval        *prometheus.GaugeVec
	mismatches, checks, errors   *prometheus.CounterVec
	seconds                      *prometheus.HistogramVec
	bytes                        prometheus.Gauge
}

// begin makes the series of a rule, so that the first of anything counts as a rise.
func (m *metrics) begin(rule Rule, interval time.Duration) {
	m.interval.WithLabelValues(rule.Name).Set(interval.Seconds())
	m.lastSuccess.WithLabelValues(rule.Name)
	m.errors.WithLabelValues(rule.Name)
	for answer := range rule.Answers {
		m.mismatches.WithLabelValues(rule.Name, answer)
	}
	for _, result := range []string{resultMended, resultKept, resultUnanswered, resultLost, resultFailed} {
		m.checks.WithLabelValues(rule.Name, result)
	}
}

func newMetrics(reg prometheus.Registerer) *metrics {
	make := promauto.With(reg)
	rule := []string{"rule"}
	return &metrics{
		suspects: make.NewGaugeVec(prometheus.GaugeOpts{
			Name: "surefoot_reconcile_suspects", Help: "Suspects at the end of the last cycle, counted up to 10000.",
		}, rule),
		oldest: make.NewGaugeVec(prometheus.GaugeOpts{
			Name: "surefoot_reconcile_oldest_suspect_seconds", Help: "Age of the oldest suspect by its clock; 0: there is none.",
		}, rule),
		unanswered: make.NewGaugeVec(prometheus.GaugeOpts{
			Name: "surefoot_reconcile_unanswered", Help: "Suspects whose last check had no answer or could not be acted on.",
		}, rule),
		lastSuccess: make.NewGaugeVec(prometheus.GaugeOpts{
			Name: "surefoot_reconcile_last_success_timestamp_seconds", Help: "When a run of the rule last ended without an error, in any process; 0: never.",
		}, rule),
		interval: make.NewGaugeVec(prometheus.GaugeOpts{
			Name: "surefoot_reconcile_interval_seconds", Help: "Time between two runs of the rule, as configured.",
		}, rule),
		mismatches: make.NewCounterVec(prometheus.CounterOpts{
			Name: "surefoot_reconcile_mismatches_total", Help: "Rows that were wrong and were mended, by the authority's answer.",
		}, []string{"rule", "answer"}),
		checks: make.NewCounterVec(prometheus.CounterOpts{
			Name: "surefoot_reconcile_checks_total", Help: "Suspects that were asked about, by result: mismatch, kept, unanswered, lost or failed.",
		}, []string{"rule", "result"}),
		errors: make.NewCounterVec(prometheus.CounterOpts{
			Name: "surefoot_reconcile_errors_total", Help: "Runs that broke off.",
		}, rule),
		seconds: make.NewHistogramVec(prometheus.HistogramOpts{
			Name: "surefoot_reconcile_run_seconds", Help: "Time of a run.", Buckets: []float64{.01, .05, .2, 1, 5, 20, 60, 300},
		}, rule),
		bytes: make.NewGauge(prometheus.GaugeOpts{
			Name: "surefoot_reconcile_bytes", Help: "Size of the tables of runs and suspects.",
		}),
	}
}
