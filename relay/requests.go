package relay

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/outbox"
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

// request carries out what an operator asked for, unless the row is on its way right now.
func (s *shard) request(ctx context.Context, q request) {
	ref := s.lanes.parked.refs[q.rowID]
	if !s.loaded || s.draining || s.handling[q.id] || ref != nil && ref.busy {
		return // looked at again within a second
	}
	if ref == nil && q.action == outbox.ActionDiscard {
		s.discard(ctx, q)
		return
	}
	s.carryOut(ctx, q, ref)
}

// carryOut does what is asked of a parked row; without ref, one that holds back nobody. While nobody knows whether that
// was done, the row stays busy, and it is tried again.
func (s *shard) carryOut(ctx context.Context, q request, ref *parkedRef) {
	if ref != nil {
		ref.busy = true
	}
	s.handling[q.id] = true
	var err error
	s.errand(ctx, func(ctx context.Context) { err = s.relay.parking.carryOut(ctx, s.epoch, &q) }, func() {
		switch {
		case errors.Is(err, errFenced):
			s.lose(err)
			return
		case err != nil:
			s.logger.Warn().Err(err).Msg("request not carried out yet")
			s.later(time.Now(), func(ctx context.Context) { s.carryOut(ctx, q, ref) })
			return
		}
		delete(s.handling, q.id)
		if ref != nil {
			ref.busy = false
		}
		switch {
		case q.done && q.action == outbox.ActionDiscard && ref != nil:
			s.lanes.unparked(ref)
		case q.done && q.action == outbox.ActionRetry:
			s.lanes.revive(q.rowID, q.hash, q.keyed)
		}
	})
}

// discard finds out where the row is: it may be pending, behind a stopped route. Such a row is discarded only while the
// fence is held: a former owner could still be publishing it.
func (s *shard) discard(ctx context.Context, q request) {
	if s.current.pub == nil {
		return
	}
	s.handling[q.id] = true
	var row *pendingRow
	var err error
	s.errand(ctx, func(ctx context.Context) { row, err = s.relay.parking.pending(ctx, q.shard, q.rowID) }, func() {
		delete(s.handling, q.id)
		switch {
		case err != nil:
			s.logger.Warn().Err(err).Msg("request not carried out yet")
		case s.draining || s.current.pub == nil:
		case row == nil:
			s.carryOut(ctx, q, s.lanes.parked.refs[q.rowID])
		default:
			s.discardPending(ctx, q, *row)
		}
	})
}

func (s *shard) discardPending(ctx context.Context, q request, row pendingRow) {
	switch s.lanes.withdraw(row) {
	case onItsWay:
	case wanted:
		q.refusal = "not discarded: its route is not stopped, so it is published in its turn"
		s.carryOut(ctx, q, nil)
	case withdrawn:
		s.handling[q.id] = true
		s.deletePending(ctx, q)
	}
}

// deletePending deletes a withdrawn row. While nobody knows whether that was done, the row stays withdrawn.
func (s *shard) deletePending(ctx context.Context, q request) {
	var gone bool
	var err error
	s.errand(ctx, func(ctx context.Context) { gone, err = s.relay.parking.discardPending(ctx, s.epoch, &q) }, func() {
		switch {
		case errors.Is(err, errFenced):
			s.lose(err)
		case err != nil:
			s.logger.Warn().Err(err).Msg("request not carried out yet")
			s.later(time.Now(), func(ctx context.Context) { s.deletePending(ctx, q) })
		default:
			delete(s.handling, q.id)
			s.lanes.endWithdrawal(q.rowID, gone)
			s.logger.Warn().Str(telemetry.FieldEventID, q.messageID).Str("outcome", q.outcome).Msg("discard of a pending row")
		}
	})
}
