package httpserver

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of all servers of one registry.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	inFlight prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "surefoot_http_requests_total", Help: "Requests answered, by route and status.",
		}, []string{"route", "status"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "surefoot_http_request_seconds", Help: "Time from the header of a request to the end of its handler.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"route"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "surefoot_http_problems_total", Help: "Requests answered with a problem, by its code.",
		}, []string{"code"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "surefoot_http_in_flight", Help: "Requests in hand."}),
	}
	if registry == nil {
		return m, nil
	}
	return m, errors.Join(register(registry, &m.requests), register(registry, &m.seconds), register(registry, &m.refused), register(registry, &m.inFlight))
}

// register takes the metric of another server of the process when there is one.
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

func (m *metrics) served(x *exchange, took time.Duration) {
	route := x.route()
	m.requests.WithLabelValues(route, strconv.Itoa(x.status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
	if x.problem != nil {
		m.refused.WithLabelValues(string(x.problem.Code)).Inc()
	}
}
