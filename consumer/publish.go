package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// Bounds of one try to move a message, and of the wait between tries.
const (
	confirmTimeout = 30 * time.Second
	moveBackoffMin = 100 * time.Millisecond
	moveBackoffMax = 10 * time.Second
)

// mover publishes copies on a connection of its own, so that an alarm, which stops publishing connections, does not stop
// acknowledgements. Each copy goes to a queue through the default exchange, mandatory and confirmed.
type mover struct {
	opts   rabbit.Options
	health *health
	limit  int // largest body in bytes; 0: the broker's default

	mu        sync.Mutex
	publisher *rabbit.Publisher
	changed   chan struct{} // closed when publisher changes
}

func newMover(opts rabbit.Options, h *health) *mover {
	return &mover{opts: opts, health: h, changed: make(chan struct{})}
}

// run keeps a publisher going until ctx ends.
func (m *mover) run(ctx context.Context) error {
	return rabbit.Supervise(ctx, rabbit.SuperviseOptions{
		Options: m.opts, OnState: func(err error) { m.health.set(partPublish, err) },
	}, m.session)
}

// session opens publishers on one connection, a fresh one after each that is over.
func (m *mover) session(ctx context.Context, conn *rabbit.Conn) error {
	for {
		p, err := conn.Publisher(ctx, rabbit.PublisherOptions{Window: 1000, MaxMessageBytes: m.limit})
		if err != nil {
			return err
		}
		m.set(p)
		select {
		case <-p.Done():
		case <-ctx.Done():
		}
		m.set(nil)
		if err := conn.Err(); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

func (m *mover) set(p *rabbit.Publisher) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.publisher = p
	close(m.changed)
	m.changed = make(chan struct{})
}

// current waits for a publisher until ctx ends.
func (m *mover) current(ctx context.Context) (*rabbit.Publisher, error) {
	for {
		m.mu.Lock()
		p, changed := m.publisher, m.changed
		m.mu.Unlock()
		if p != nil {
			return p, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, errors.New("not connected for publishing")
		}
	}
}

// move publishes until the copy is confirmed; only then it returns nil. It gives up when ctx ends, and at once with a
// *rabbit.RefusedError, when the copy can never be sent. The original must stay unacknowledged until then.
func (m *mover) move(ctx context.Context, queue string, msg amqp.Publishing) error {
	part := partMove + queue
	for wait := moveBackoffMin; ; wait = min(2*wait, moveBackoffMax) {
		err := m.try(ctx, queue, msg)
		if err == nil {
			m.health.set(part, nil)
			return nil
		}
		if rabbit.IsRefused(err) || ctx.Err() != nil {
			return err
		}
		m.health.set(part, fmt.Errorf("messages cannot be moved to %s, they stay in their queue: %w", queue, err))
		m.opts.Logger.Warn().Err(err).Str("target", queue).Msg("message not moved yet, trying again")
		if !pause.For(ctx, pause.Jitter(wait)) {
			return err
		}
	}
}

// try publishes once. After an unknown outcome the next try gets a fresh channel: a late confirm on the old one
// must not be taken for an answer to it.
func (m *mover) try(ctx context.Context, queue string, msg amqp.Publishing) error {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	p, err := m.current(ctx)
	if err != nil {
		return err
	}
	err = p.PublishConfirmed(ctx, "", queue, msg)
	var returned *rabbit.ReturnedError
	switch {
	case err == nil || rabbit.IsRefused(err):
		return err
	case errors.As(err, &returned):
		return fmt.Errorf("the queue does not exist; run `surefoot topology apply`: %w", err)
	}
	m.retire(ctx, p)
	return err
}

// retire closes a publisher, once, and lets the session open another.
func (m *mover) retire(ctx context.Context, p *rabbit.Publisher) {
	m.mu.Lock()
	current := m.publisher == p
	if current {
		m.publisher = nil
	}
	m.mu.Unlock()
	if current {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = p.Close(ctx) // it is over either way; what flies has an unknown outcome
	}
}
