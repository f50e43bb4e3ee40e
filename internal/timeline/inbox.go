package timeline

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	memorySQL pg.SQL = `SELECT coalesce(min(retention), '0 s') FROM @schema@.inbox_consumers`

	inboxSQL pg.SQL = `
SELECT c.name, c.queue, i.handled_at FROM @schema@.inbox_consumers c
CROSS JOIN LATERAL (SELECT handled_at FROM @schema@.inbox WHERE consumer = c.id AND message = @schema@.inbox_key($1)) i ORDER BY i.handled_at`

	suspectsSQL pg.SQL = `
SELECT c.name, c.queue, s.runs, s.at FROM @schema@.inbox_consumers c
CROSS JOIN LATERAL (SELECT runs, at FROM @schema@.inbox_suspects WHERE consumer = c.id AND message = @schema@.inbox_key($1)) s`
)

func (r *reader) inboxes(ctx context.Context) error {
	if err := r.tx.QueryRow(ctx, memorySQL.In(r.schema)).Scan(&r.memory); err != nil {
		return fmt.Errorf("read how long inboxes remember: %w", err)
	}
	return nil
}

func (r *reader) inbox(ctx context.Context) error {
	rows, _ := r.tx.Query(ctx, inboxSQL.In(r.schema), r.t.ID)
	var name, queue string
	var at time.Time
	_, err := pgx.ForEachRow(rows, []any{&name, &queue, &at}, func() error {
		r.t.left = true
		r.t.settled[queue] = true
		r.t.place("processed by %s", name)
		r.t.add(Step{At: message.Stamp{Time: at}, Store: StoreInbox, What: "processed", Queue: queue, Detail: "committed by consumer " + name})
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the inbox: %w", err)
	}
	return nil
}

func (r *reader) suspects(ctx context.Context) error {
	rows, _ := r.tx.Query(ctx, suspectsSQL.In(r.schema), r.t.ID)
	var name, queue string
	var runs int
	var at time.Time
	_, err := pgx.ForEachRow(rows, []any{&name, &queue, &runs, &at}, func() error {
		r.t.left = true
		r.t.add(Step{
			At: message.Stamp{Time: at}, Store: StoreInbox, What: "started alone", Queue: queue, Failed: runs > 1,
			Detail: fmt.Sprintf("by consumer %s, after a process had died with it or beside it; started so %s without an end", name, times(runs)),
		})
		return nil
	})
	if err != nil {
		return fmt.Errorf("read what was started alone: %w", err)
	}
	return nil
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
