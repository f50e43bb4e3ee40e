package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// probes answer for the health of this process: /livez whenever it can answer at all, /readyz by what its roles say, /metrics.
type probes struct {
	mux     http.ServeMux
	mu      sync.Mutex
	reasons map[string]string
}

func newProbes(registry *prometheus.Registry) *probes {
	p := &probes{reasons: map[string]string{}}
	p.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	p.mux.HandleFunc("GET /readyz", p.ready)
	p.mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	return p
}

// ServeHTTP implements [http.Handler].
func (p *probes) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.mux.ServeHTTP(w, r) }

// set notes what a role says of itself; nil is ready.
func (p *probes) set(role string, reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.reasons, role)
	if reason != nil {
		p.reasons[role] = reason.Error()
	}
}

func (p *probes) ready(w http.ResponseWriter, _ *http.Request) {
	p.mu.Lock()
	reasons := maps.Clone(p.reasons)
	p.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if len(reasons) > 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"ready": len(reasons) == 0, "reasons": reasons}) // the client is gone: there is nobody to tell
}
