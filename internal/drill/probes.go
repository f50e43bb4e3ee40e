package drill

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
)

// probes ask a process how it is, over and over.
type probes struct {
	mu    sync.Mutex
	live  map[int]int // answers by status; 0 is none
	ready int         // the last status
	worst int         // the highest status of readiness
	why   string      // with that
}

// probe asks until the arm ends.
func (s *stage) probe(ctx context.Context, address string) *probes {
	p := &probes{live: map[int]int{}}
	client := &http.Client{Transport: s.transport(), Timeout: 2 * time.Second}
	get := func(path string) (int, string) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, http.NoBody)
		if err != nil {
			return 0, ""
		}
		response, err := client.Do(r)
		if err != nil {
			return 0, ""
		}
		defer func() { _ = response.Body.Close() }()
		text, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
		return response.StatusCode, string(text)
	}
	s.background(ctx, func(ctx context.Context) error {
		for pause.For(ctx, 100*time.Millisecond) {
			live, _ := get("/livez")
			status, reason := get("/readyz")
			p.note(ctx, live, status, reason)
		}
		return nil
	})
	return p
}

// note writes answers down, but not those that the end of the arm has interrupted.
func (p *probes) note(ctx context.Context, live, status int, reason string) {
	if ctx.Err() != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live[live]++
	p.ready = status
	if status > p.worst {
		p.worst, p.why = status, reason
	}
}

func (p *probes) last() int { p.mu.Lock(); defer p.mu.Unlock(); return p.ready }

// begin forgets what was before.
func (p *probes) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live, p.worst, p.why = map[int]int{}, 0, ""
}
