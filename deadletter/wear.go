package deadletter

import (
	"context"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

// Wear returns how many deliveries the oldest letter of a queue's dead-letter queue has had that count against its delivery limit: every look
// is one, this look too, once it is over. It is 0 for an empty queue. Like Show it gives the letter back to its place, and fails with a
// *LockedError while another operation has the queue.
func (d *DeadLetters) Wear(ctx context.Context, queue, who string) (deliveries int64, err error) {
	n, err := namesOf(queue)
	if err != nil {
		return 0, err
	}
	err = d.connected(ctx, n, claim{who: who, action: "doctor"}, func(ctx context.Context, conn *rabbit.Conn, _ *lock) error {
		return d.look(ctx, conn, n, 1, false, func(delivery *amqp.Delivery) bool {
			if delivery.Redelivered { // else the header may be a stale copy
				deliveries, _ = message.Integer(delivery.Headers["x-delivery-count"])
			}
			return false
		})
	})
	return deliveries, err
}
