package telemetry

import (
	"maps"
	"sync"
)

// Readiness collects what keeps this process from doing its work, part by part. The zero value is ready
// for use and reports ready. It is safe for concurrent use.
type Readiness struct {
	mu       sync.Mutex
	reasons  map[string]string
	draining bool
}

// Set tells how a part is: nil means ready, an error says why not. The reason is shown to whoever can reach
// the probe: it must not hold secrets.
func (r *Readiness) Set(part string, reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if reason == nil {
		delete(r.reasons, part)
		return
	}
	if r.reasons == nil {
		r.reasons = map[string]string{}
	}
	r.reasons[part] = reason.Error()
}

// Part returns a function that sets one part, to be handed to the part itself.
func (r *Readiness) Part(part string) func(reason error) {
	return func(reason error) { r.Set(part, reason) }
}

// Drain makes the process not ready for good: it is stopping.
func (r *Readiness) Drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.draining = true
}

// Snapshot tells whether everything is ready, and for each part that is not, why.
func (r *Readiness) Snapshot() (ready bool, reasons map[string]string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	reasons = maps.Clone(r.reasons)
	if r.draining {
		if reasons == nil {
			reasons = map[string]string{}
		}
		reasons["process"] = "draining"
	}
	return len(reasons) == 0, reasons
}
