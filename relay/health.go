package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

const (
	// complainAfter is how long something must be waited for to be worth a line in the log.
	complainAfter = 5 * time.Second
	healthTick    = time.Second
	// noShard stands for what is no shard's.
	noShard = -1
)

// health turns what the parts wait for into one readiness, and what lasts into the log.
type health struct {
	logger zerolog.Logger
	report func(error)

	mu    sync.Mutex
	parts map[part]error
	told  string
	since time.Time // when the relay was ready last; zero: it is
}

// part is what may wait, of the whole relay or of one shard.
type part struct {
	name  string
	shard int
}

func newHealth(report func(error), logger zerolog.Logger) *health {
	return &health{parts: map[part]error{}, told: "unknown", report: report, logger: logger}
}

// set notes what a part waits for; nil: nothing. It reports changes only.
func (h *health) set(p part, reason error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if reason == nil {
		delete(h.parts, p)
	} else {
		h.parts[p] = reason
	}
	err := h.joined()
	switch {
	case err == nil:
		h.since = time.Time{}
	case h.since.IsZero():
		h.since = time.Now()
	}
	if text := fmt.Sprint(err); text != h.told {
		h.told = text
		h.report(err)
	}
}

// joined tells a reason that several shards have once.
func (h *health) joined() error {
	type same struct{ name, reason string }
	shards := map[same][]int{}
	for p, reason := range h.parts {
		key := same{p.name, reason.Error()}
		shards[key] = append(shards[key], p.shard)
	}
	var reasons []error
	for key, of := range shards {
		slices.Sort(of)
		text := key.name
		if of[0] != noShard {
			text += " (" + shardList(of) + ")"
		}
		reasons = append(reasons, fmt.Errorf("%s: %w", text, h.parts[part{key.name, of[0]}]))
	}
	slices.SortFunc(reasons, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errors.Join(reasons...)
}

func shardList(shards []int) string {
	texts := make([]string, len(shards))
	for i, shard := range shards {
		texts[i] = strconv.Itoa(shard)
	}
	if len(texts) == 1 {
		return "shard " + texts[0]
	}
	return "shards " + strings.Join(texts, ", ")
}

// run logs what is waited for longer than a moment, once a minute, and when that is over.
func (h *health) run(ctx context.Context) {
	var waiting telemetry.Reminder
	for pause.For(ctx, healthTick) {
		h.mu.Lock()
		err, since := h.joined(), h.since
		h.mu.Unlock()
		now := time.Now()
		switch {
		case err == nil && waiting.Over():
			h.logger.Info().Msg("publishing goes on")
		case err != nil && now.Sub(since) >= complainAfter && waiting.Due("waiting", now):
			h.logger.Warn().Err(err).Stringer("for", now.Sub(since).Round(time.Second)).Msg("publishing waits")
		}
	}
}
