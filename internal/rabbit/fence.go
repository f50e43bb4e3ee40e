package rabbit

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrFenced says that another connection holds the fence.
var ErrFenced = errors.New("rabbit: fenced: another connection holds the exclusive queue")

// Fence takes the exclusive queue name on conn, and holds it as long as the connection lives: the broker deletes it with the connection, 18 to 32 ms after
// a TCP close (measured), after twice the heartbeat when the peer is frozen. While another connection holds it, it returns ErrFenced. The user needs
// the configure permission on the name.
func Fence(ctx context.Context, conn *Conn, name string) error {
	channel, err := conn.Channel(ctx)
	if err != nil {
		return err
	}
	err = channel.Do(ctx, fmt.Sprintf("take fence %q", name), func(ch *amqp.Channel) error {
		// Classic, for a quorum queue cannot be exclusive; the type is named, for the vhost's default may be quorum.
		_, err := ch.QueueDeclare(name, false, false, true, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic})
		return err
	})
	switch Code(err) {
	case 0:
		return errors.Join(err, channel.Close(ctx))
	case amqp.ResourceLocked:
		return fmt.Errorf("%w: %w", ErrFenced, err)
	case amqp.AccessRefused:
		return fmt.Errorf("%w (the user needs the configure permission on queues that start with surefoot.fence.)", err)
	default:
		return err
	}
}
