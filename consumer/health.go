package consumer

import (
	"errors"
	"maps"
	"slices"
	"sync"
)

// Parts of the consumer's health, in the words of readiness.
const (
	partConnect  = "connect"
	partPublish  = "publish"
	partDatabase = "database"
	partPause    = "pause"
	partSuspend  = "suspend"
	partBacklog  = "backlog"
	partLate     = "late"
	partMove     = "move "
)

// health puts together what keeps the consumer from working.
type health struct {
	mu      sync.Mutex
	reasons map[string]error
	report  func(error)
}

func newHealth(report func(error), starting error) *health {
	h := &health{reasons: map[string]error{}, report: report}
	h.set(partConnect, starting)
	return h
}

func (h *health) set(part string, reason error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.reasons[part]
	if before == nil && reason == nil || before != nil && reason != nil && before.Error() == reason.Error() {
		return
	}
	delete(h.reasons, part)
	if reason != nil {
		h.reasons[part] = reason
	}
	var all []error
	for _, name := range slices.Sorted(maps.Keys(h.reasons)) {
		all = append(all, h.reasons[name])
	}
	h.report(errors.Join(all...))
}
