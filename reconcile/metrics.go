package reconcile

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
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

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	r := telemetry.NewRegistrar(registry)
	m := &metrics{
		suspects:    r.Gauge("surefoot_reconcile_suspects", "Suspects at the end of the last cycle, counted up to 10000.", "rule"),
		oldest:      r.Gauge("surefoot_reconcile_oldest_suspect_seconds", "Age of the oldest suspect by its clock; 0: there is none.", "rule"),
		unanswered:  r.Gauge("surefoot_reconcile_unanswered", "Suspects whose last check had no answer or could not be acted on.", "rule"),
		lastSuccess: r.Gauge("surefoot_reconcile_last_success_timestamp_seconds", "When a run of the rule last ended without an error, in any process; 0: never.", "rule"),
		interval:    r.Gauge("surefoot_reconcile_interval_seconds", "Time between two runs of the rule, as configured.", "rule"),
		mismatches:  r.Counter("surefoot_reconcile_mismatches_total", "Rows that were wrong and were mended, by the authority's answer.", "rule", "answer"),
		checks:      r.Counter("surefoot_reconcile_checks_total", "Suspects that were asked about, by result: mismatch, kept, unanswered, lost or failed.", "rule", "result"),
		errors:      r.Counter("surefoot_reconcile_errors_total", "Runs that broke off.", "rule"),
		seconds:     r.Histogram("surefoot_reconcile_run_seconds", "Time of a run.", []float64{.01, .05, .2, 1, 5, 20, 60, 300}, "rule"),
		bytes:       r.Gauge("surefoot_reconcile_bytes", "Size of the tables of runs and suspects.").WithLabelValues(),
	}
	return m, r.Err()
}
