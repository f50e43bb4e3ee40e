package deadletter

import (
	"context"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/topology"
)

// Suffix makes the name of a dead-letter queue out of that of its work queue.
const Suffix = topology.DLQSuffix

// DLQ returns the name of a queue's dead-letter queue. It takes the work queue's name and also the
// dead-letter queue's own.
func DLQ(queue string) string { return strings.TrimSuffix(queue, Suffix) + Suffix }

// names are the two queues of an operation.
type names struct{ work, dlq string }

func namesOf(queue string) (names, error) {
	n := names{work: strings.TrimSuffix(queue, Suffix), dlq: DLQ(queue)}
	if n.work == "" || len(n.dlq) > message.MaxShortString {
		return n, fmt.Errorf("%w: name a queue of 1 to %d bytes, such as orders.saga", ErrBadRequest, message.MaxShortString-len(Suffix))
	}
	return n, nil
}

// inspect returns how many messages of a queue are ready and its consumers. It is exact, unlike the management API.
func inspect(ctx context.Context, conn *rabbit.Conn, queue string) (q amqp.Queue, err error) {
	q.Messages, q.Consumers, err = conn.Inspect(ctx, queue)
	return q, err
}
