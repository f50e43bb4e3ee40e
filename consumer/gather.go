package consumer

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// gatherTimeout bounds a statement for several. Whoever has no answer then asks alone, as long as its own time allows.
const gatherTimeout = 5 * time.Second

// gathering runs a statement for keys, which are in the order of ids, and returns those that the inbox knows.
type gathering func(ctx context.Context, keys pgtype.FlatArray[pgtype.UUID]) (known map[uuid.UUID]bool, err error)

// gather makes one statement out of what several messages ask of the inbox at the same time: while statements run, the next ones
// gather, and one of those that wait asks for all. A message that is alone waits for nobody. Where a statement is a commit, that is one for
// all of them.
type gather struct {
	ask   gathering
	turns chan struct{} // one value for each statement that runs

	mu      sync.Mutex
	waiting []*asking
}

// asking is one message that waits.
type asking struct {
	key    uuid.UUID
	answer chan gathered // takes one
}

type gathered struct {
	known bool
	err   error
}

// newGather lets as many statements run at a time as atOnce says.
func newGather(atOnce int, ask gathering) *gather {
	return &gather{ask: ask, turns: make(chan struct{}, atOnce)}
}

// do asks for one message. What failed for several, be it that a row of one of them is locked or that the time of the one who asked was over, is
// asked for alone: nothing but its own time and fate may end it.
func (g *gather) do(ctx context.Context, key uuid.UUID) (known bool, err error) {
	me := &asking{key, make(chan gathered, 1)}
	g.mu.Lock()
	g.waiting = append(g.waiting, me)
	g.mu.Unlock()
	got, err := g.await(ctx, me)
	if err != nil {
		return false, err
	}
	if got.err == nil {
		return got.known, nil
	}
	all, err := g.ask(ctx, pgtype.FlatArray[pgtype.UUID]{{Bytes: key, Valid: true}})
	return all[key], err
}

func (g *gather) await(ctx context.Context, me *asking) (gathered, error) {
	turns := g.turns
	for {
		select {
		case got := <-me.answer:
			return got, nil
		case turns <- struct{}{}:
			g.turn(ctx)
			<-turns
			turns = nil // from here on another one has me with him, or I have my answer
		case <-ctx.Done():
			g.mu.Lock()
			defer g.mu.Unlock()
			g.waiting = slices.DeleteFunc(g.waiting, func(a *asking) bool { return a == me })
			return gathered{}, context.Cause(ctx)
		}
	}
}

// turn asks for all that wait, and answers them.
func (g *gather) turn(ctx context.Context) {
	g.mu.Lock()
	all := g.waiting
	g.waiting = nil
	g.mu.Unlock()
	if len(all) == 0 {
		return
	}
	// Replicas that record the same messages wait for each other in one direction only.
	slices.SortFunc(all, func(a, b *asking) int { return bytes.Compare(a.key[:], b.key[:]) })
	ctx, cancel := context.WithTimeout(ctx, gatherTimeout)
	defer cancel()
	keys := make(pgtype.FlatArray[pgtype.UUID], len(all))
	for i, a := range all {
		keys[i] = pgtype.UUID{Bytes: a.key, Valid: true}
	}
	known, err := g.ask(ctx, keys)
	for _, a := range all {
		a.answer <- gathered{known[a.key], err}
	}
}
