package timeline

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/message"
)

// audit adds what operators did, the oldest first.
func (r *reader) audit(ctx context.Context) error {
	items, err := audit.List(ctx, r.tx, r.schema, audit.Filter{MessageID: r.t.ID, Limit: maxSteps})
	if err != nil {
		return err
	}
	for _, i := range slices.Backward(items) {
		detail := []string{i.Outcome}
		for _, text := range []string{i.Target, i.Reason} {
			if text != "" {
				detail = append(detail, text)
			}
		}
		r.t.add(Step{
			At: message.Stamp{Time: i.At}, Store: StoreAudit, What: i.Action, Detail: strings.Join(detail, "; "), Who: i.Who,
			Operation: uuid.NullUUID{UUID: i.Operation, Valid: true},
		})
		r.t.discard = r.t.discard || i.Action == "outbox discard"
		r.t.left = r.t.left || strings.HasPrefix(i.Action, "dlq ")
	}
	return nil
}
