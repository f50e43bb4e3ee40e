package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"
)

// dial opens n connections with the plain client: its buffer is flushed once per publish, as it comes. Surefoot's own relay gathers writes in a
// net.Conn of its own, which anyone could write, but which is no setting of the client.
func (e *environment) dial(n int) (_ []*amqp.Connection, closeAll func(), err error) {
	var conns []*amqp.Connection
	closeAll = func() {
		for _, c := range conns {
			_ = c.Close() // everything is confirmed by now, or the command has failed already
		}
	}
	if _, err := amqp.ParseURI(e.amqpURL); err != nil {
		return nil, nil, errors.New("SUREFOOT_AMQP_URL is not set to an AMQP URL") // the cause would show the password
	}
	for range n {
		conn, err := amqp.Dial(e.amqpURL)
		if err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("connect to the broker: %w", err)
		}
		conns = append(conns, conn)
	}
	return conns, closeAll, nil
}

// publisher is one channel in confirm mode; safe for concurrent use.
type publisher struct {
	ch       *amqp.Channel
	exchange string
	closed   chan *amqp.Error
	returns  chan amqp.Return

	mu       sync.Mutex
	returned map[string]bool
}

// newPublisher opens a channel with at most window publishes in flight: as many returns have room, for a full channel of returns is given up.
func (e *environment) newPublisher(conn *amqp.Connection, window int) (*publisher, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	if err := ch.ExchangeDeclarePassive(e.exchange, amqp.ExchangeTopic, true, false, false, false, nil); err != nil {
		return nil, fmt.Errorf("SUREFOOT_BENCH_EXCHANGE: %w", err)
	}
	if err := ch.Confirm(false); err != nil {
		return nil, fmt.Errorf("confirm mode: %w", err)
	}
	return &publisher{
		ch: ch, exchange: e.exchange, returned: map[string]bool{},
		closed: ch.NotifyClose(make(chan *amqp.Error, 1)), returns: ch.NotifyReturn(make(chan amqp.Return, window)),
	}, nil
}

// publish sends a message; its outcome is known when landed has returned.
func (p *publisher) publish(id, key string, body []byte) (*amqp.DeferredConfirmation, error) {
	return p.ch.PublishWithDeferredConfirm(p.exchange, routingKey, true, false, amqp.Publishing{
		MessageId: id, Type: routingKey, DeliveryMode: amqp.Persistent, Headers: amqp.Table{"sf-key": key}, Body: body,
	})
}

// landed waits for the confirm and returns nil when the broker has taken and routed the message. A return comes before its confirm.
func (p *publisher) landed(ctx context.Context, confirm *amqp.DeferredConfirmation, id string) error {
	acked, err := confirm.WaitContext(ctx)
	switch {
	case err != nil:
		return err
	case !acked:
		return fmt.Errorf("%s: outcome unknown: %w", id, p.why())
	case p.wasReturned(id):
		return fmt.Errorf("%s was returned: no queue is bound to %s for %s", id, p.exchange, routingKey)
	}
	return nil
}

func (p *publisher) why() error {
	select {
	case err := <-p.closed:
		if err != nil {
			return err
		}
		return amqp.ErrClosed
	default:
		return errors.New("the broker refused it")
	}
}

func (p *publisher) wasReturned(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		select {
		case r, open := <-p.returns:
			if !open {
				return p.returned[id]
			}
			p.returned[r.MessageId] = true
		default:
			return p.returned[id]
		}
	}
}
