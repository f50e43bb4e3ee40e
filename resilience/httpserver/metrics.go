package httpserver

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// metrics of all servers of one registry.
type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	inFlight prometheus.Gauge
}

func newMetrics(registry prometheus.Registerer) (*metrics, error) {
	r := telemetry.NewRegistrar(registry)
	m := &metrics{
		requests: r.Counter("surefoot_http_requests_total", "Requests answered, by route and status.", "route", "status"),
		seconds: r.Histogram("surefoot_http_request_seconds", "Time from the header of a request to the end of its handler.",
			[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}, "route"),
		refused:  r.Counter("surefoot_http_problems_total", "Requests answered with a problem, by its code.", "code"),
		inFlight: r.Gauge("surefoot_http_in_flight", "Requests in hand.").WithLabelValues(),
	}
	return m, r.Err()
}

func (m *metrics) served(x *exchange, took time.Duration) {
	route := x.route()
	m.requests.WithLabelValues(route, strconv.Itoa(x.status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
	if x.problem != nil {
		m.refused.WithLabelValues(string(x.problem.Code)).Inc()
	}
}
