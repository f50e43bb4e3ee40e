package drill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

// load commits messages at a steady rate, each in a transaction with a row that tells of it.
type load struct {
	stage *stage
	box   *outbox.Outbox
	kind  func(n int) string
	n     int
	stop  func() error
}

// load begins one that goes on until its stop is called.
func (s *stage) load(ctx context.Context, every time.Duration, kind func(n int) string) (*load, error) {
	box, err := outbox.New(outbox.Options{Schema: s.schema})
	if err != nil {
		return nil, err
	}
	l := &load{stage: s, box: box, kind: kind}
	l.stop = s.background(ctx, func(ctx context.Context) error {
		for pause.For(ctx, every) {
			if err := l.one(context.WithoutCancel(ctx)); err != nil {
				return fmt.Errorf("load: %w", err)
			}
		}
		return nil
	})
	return l, nil
}

// one commits one message: of one of a few keys.
func (l *load) one(ctx context.Context) error {
	m := newEvent("drill.job", fmt.Sprintf("key-%d", l.n%8), job{Kind: l.kind(l.n)})
	l.n++
	return l.stage.send(ctx, l.box, m)
}

// send commits a message and writes down that it did.
func (s *stage) send(ctx context.Context, box *outbox.Outbox, m message.Message) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, sentAdd.In(s.schema), m.ID)
		_, failed := box.Enqueue(ctx, tx, m)
		return errors.Join(err, failed)
	})
}
