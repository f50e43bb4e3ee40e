package consumer

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// pauseWatch knows whether the queue is paused. While the database cannot be asked the last answer holds.
type pauseWatch struct {
	opts    Options
	log     zerolog.Logger
	health  *health
	metrics *metrics

	mu     sync.Mutex
	known  bool // the database has answered once
	pause  *Pause
	change chan struct{} // closed at the next change
}

func newPauseWatch(o Options, log zerolog.Logger, h *health, m *metrics) *pauseWatch {
	return &pauseWatch{opts: o, log: log, health: h, metrics: m, change: make(chan struct{})}
}

// run asks the database until ctx ends.
func (w *pauseWatch) run(ctx context.Context) {
	for {
		w.look(ctx)
		if !pause.For(ctx, w.opts.PausePoll) {
			return
		}
	}
}

func (w *pauseWatch) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, w.opts.PausePoll+time.Second)
	defer cancel()
	pauses, err := Pauses(ctx, w.opts.Pool, w.opts.Schema, w.opts.Queue)
	if err != nil {
		w.log.Debug().Err(err).Msg("pause not looked up, the last answer holds")
		return
	}
	var pause *Pause
	if len(pauses) > 0 {
		pause = &pauses[0]
	}
	w.set(pause)
}

func (w *pauseWatch) set(pause *Pause) {
	w.mu.Lock()
	defer w.mu.Unlock()
	same := w.known && (pause == nil) == (w.pause == nil)
	first := !w.known
	w.known, w.pause = true, pause
	if same {
		return
	}
	close(w.change)
	w.change = make(chan struct{})
	if pause == nil {
		if !first {
			w.log.Info().Msg("queue resumed")
		}
		w.metrics.paused.Set(0)
		w.health.set(partPause, nil)
		return
	}
	w.metrics.paused.Set(1)
	w.log.Info().Str("who", pause.Who).Str(telemetry.FieldReason, pause.Reason).Msg("queue paused")
	w.health.set(partPause, fmt.Errorf("queue %s is paused since %s by %s: %s", w.opts.Queue, pause.At.UTC().Format(time.RFC3339), pause.Who, pause.Reason))
}

// changed is closed at the next change of paused.
func (w *pauseWatch) changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.change
}

// paused is true too before the database has answered once: a pause survives restarts.
func (w *pauseWatch) paused() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.known || w.pause != nil
}

// resumed waits until the queue is not paused; false when ctx or the connection ends first.
func (w *pauseWatch) resumed(ctx context.Context, lost <-chan struct{}) bool {
	for {
		changed := w.changed()
		if ctx.Err() != nil {
			return false
		}
		if !w.paused() {
			return true
		}
		w.health.set(partConnect, nil)
		select {
		case <-changed:
		case <-lost:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
