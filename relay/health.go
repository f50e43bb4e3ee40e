package relay

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// health turns what the parts wait for into one readiness.
type health struct {
	mu     sync.Mutex
	parts  map[string]error
	told   string
	report func(error)
}

func newHealth(report func(error)) *health {
	return &health{parts: map[string]error{}, told: "unknown", report: report}
}

// set notes what a part waits for; nil: nothing. It reports changes only.
func (h *health) set(part string, reason error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reason == nil {
		delete(h.parts, part)
	} else {
		h.parts[part] = reason
	}
	err := h.joined()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != h.told {
		h.told = text
		h.report(err)
	}
}

func (h *health) joined() error {
	var reasons []error
	for _, part := range slices.Sorted(maps.Keys(h.parts)) {
		reasons = append(reasons, fmt.Errorf("%s: %w", part, h.parts[part]))
	}
	return errors.Join(reasons...)
}
