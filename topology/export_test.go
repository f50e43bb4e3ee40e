package topology

import (
	"context"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// PutBackLate deletes a queue as pruning does, with a message arriving after the last look, and returns what was saved and put back.
func PutBackLate(ctx context.Context, conn *rabbit.Conn, name string, have QueueState, arrive func()) (late []amqp.Delivery, err error) {
	g, err := newGuard(ctx, conn, name)
	if err != nil {
		return nil, err
	}
	arrive()
	if late, err = g.delete(ctx); err != nil {
		return nil, err
	}
	a := applier{conn: conn}
	if err := a.putBack(ctx, name, have, late); err != nil {
		return nil, err
	}
	return late, g.release(ctx)
}

// DeleteEmpty is what prune does with one queue, with a shorter look.
func DeleteEmpty(ctx context.Context, conn *rabbit.Conn, m *rabbit.Management, name string, settle time.Duration) (why string, err error) {
	a := applier{conn: conn, management: m, settle: settle}
	return a.deleteEmpty(ctx, name, QueueState{})
}

// Hasty makes pruning watch a queue for a moment only: figures may be old, which errs on the side of keeping.
func Hasty(t *Topology) { t.settle = 50 * time.Millisecond }

// Patient makes it watch each queue long enough for a test to interfere.
func Patient(t *Topology) { t.settle = 3 * time.Second }

// TopicMatches is the broker's rule for bindings.
func TopicMatches(pattern, key string) bool { return topicMatches(pattern, key) }
