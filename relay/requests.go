package relay

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
)

const (
	// requestsEvery is how often operators' requests are looked for.
	requestsEvery = time.Second
	// requestQueue is how many of them wait for a shard's goroutine at most; the others are looked at again.
	requestQueue = 100
)

// requests hands what operators ask for to the shards that own the rows, until ctx ends.
func (r *Relay) requests(ctx context.Context) {
	for pause.For(ctx, requestsEvery) {
		shards := r.running()
		if len(shards) == 0 {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, readTimeout)
		found, err := r.parking.requests(limited, slices.Sorted(maps.Keys(shards)))
		cancel()
		if err != nil && ctx.Err() == nil {
			r.opts.Logger.Debug().Err(err).Msg("requests not looked for")
		}
		for _, q := range found {
			select {
			case shards[q.shard].requests <- q:
			default: // still busy with the last ones
			}
		}
	}
}

// enlist notes the shard that runs, or with nil that none does.
func (r *Relay) enlist(id int16, s *shard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s == nil {
		delete(r.shards, id)
	} else {
		r.shards[id] = s
	}
	r.metrics.shards.Set(float64(len(r.shards)))
}

func (r *Relay) running() map[int16]*shard {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.shards)
}
