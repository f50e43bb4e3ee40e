package drill

import (
	"context"
	"time"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// operator is who acts in drills.
const operator = "drill"

// letters is the arm's view of its dead-letter queues.
func (s *stage) letters(ctx context.Context) (*deadletter.DeadLetters, error) {
	broker, err := s.broker(ctx)
	if err != nil {
		return nil, err
	}
	return deadletter.New(deadletter.Options{
		Pool: s.pool, Schema: s.schema, AMQPURL: broker, ManagementURL: s.o.ManagementURL, TLS: s.o.TLS, Logger: s.logger, Host: s.o.Host, Version: s.o.Version,
	})
}

// deadLetters looks at all that is in a dead-letter queue.
func (s *stage) deadLetters(ctx context.Context, queue string) ([]deadletter.Letter, error) {
	letters, err := s.letters(ctx)
	if err != nil {
		return nil, err
	}
	return letters.Show(ctx, deadletter.ShowRequest{Queue: queue, Limit: deadletter.MaxShow, Who: operator})
}

// dead waits until a dead-letter queue has n letters.
func (s *stage) dead(ctx context.Context, conn *rabbit.Conn, queue string, n int) error {
	return eventually(ctx, 30*time.Second, "the dead letters", func(ctx context.Context) (bool, error) {
		have, err := ready(ctx, conn, queue)
		return have >= n, err
	})
}
