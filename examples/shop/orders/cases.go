package orders

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/store"
)

// States of a recovery case. A case is closed as accepted or compensated; while it is not, it is the only one of its order.
const (
	CaseOpen        = "open"
	CaseAccepted    = "accepted"
	CaseCompensated = "compensated"
	CaseManual      = "manual"
)

const (
	openCaseSQL store.SQL = `
INSERT INTO @schema@.recovery_cases (tenant, order_id, reason, evidence, next_at) VALUES ($1, $2, $3, $4, now() + $5::interval)
ON CONFLICT (tenant, order_id) WHERE closed_at IS NULL DO NOTHING`

	// What nobody has answered for so long was interrupted: the process that asked for it is gone.
	sweepSQL store.SQL = `
INSERT INTO @schema@.recovery_cases (tenant, order_id, reason)
SELECT tenant, id, '` + ReasonInterrupted + `' FROM @schema@.orders AS o
WHERE checkout = 'sync' AND answered_at IS NULL AND created_at <= now() - $1::interval
    AND NOT EXISTS (SELECT FROM @schema@.recovery_cases AS c WHERE c.tenant = o.tenant AND c.order_id = o.id AND c.closed_at IS NULL)
ORDER BY created_at LIMIT 1000
ON CONFLICT (tenant, order_id) WHERE closed_at IS NULL DO NOTHING`

	// Tenant by tenant in turn, so that the many cases of one do not keep the others' waiting.
	claimCasesSQL store.SQL = `
WITH due AS (
    SELECT id, row_number() OVER (PARTITION BY tenant ORDER BY next_at, id) AS turn FROM @schema@.recovery_cases WHERE state = 'open' AND next_at <= now()
), picked AS (
    SELECT c.id FROM @schema@.recovery_cases AS c JOIN due USING (id) WHERE c.state = 'open' AND c.next_at <= now()
    ORDER BY due.turn, c.next_at LIMIT $1 FOR UPDATE OF c SKIP LOCKED
)
UPDATE @schema@.recovery_cases AS c SET version = version + 1, next_at = now() + $2::interval FROM picked
WHERE c.id = picked.id RETURNING c.id, c.order_id, c.version, c.asked, now() - c.since`

	// The compare-and-swap: only whoever claimed the case last may move it.
	moveCaseSQL store.SQL = `
UPDATE @schema@.recovery_cases SET state = $3, version = version + 1, asked = asked + 1, reason = coalesce(nullif($4, ''), reason), evidence = $5, next_at = now() + $6::interval,
    closed_at = CASE WHEN $3 IN ('accepted', 'compensated') THEN now() END
WHERE id = $1 AND version = $2 AND state = 'open'`

	closeCasesSQL store.SQL = `
UPDATE @schema@.recovery_cases SET state = $3, version = version + 1, closed_at = now() WHERE tenant = $1 AND order_id = $2 AND closed_at IS NULL`

	reopenSQL store.SQL = `
UPDATE @schema@.recovery_cases SET state = 'open', version = version + 1, asked = 0, since = now(), next_at = now()
WHERE tenant = $1 AND order_id = $2 AND state = 'manual'`

	casesSQL store.SQL = `
SELECT tenant, order_id, state, reason, evidence, asked, next_at, opened_at, closed_at FROM @schema@.recovery_cases
WHERE closed_at IS NULL ORDER BY opened_at, id LIMIT 10000`
)

// Case is an order whose outcome is not known, or was not.
type Case struct {
	Tenant  string `json:"tenant"`
	OrderID string `json:"orderId"`
	State   string `json:"state"`
	Reason  string `json:"reason"`
	// Evidence is what each service said last.
	Evidence map[string]string `json:"evidence"`
	// Asked is how often the services were asked.
	Asked    int        `json:"asked"`
	NextAt   time.Time  `json:"nextAt"`
	OpenedAt time.Time  `json:"openedAt"`
	ClosedAt *time.Time `json:"closedAt,omitempty"`
}

// Cases lists those that are not closed, the oldest first.
func (s *Service) Cases(ctx context.Context, db querier) ([]Case, error) {
	rows, _ := db.Query(ctx, casesSQL.In(s.schema)) // its error is that of the rows
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Case])
	if err != nil {
		return nil, fmt.Errorf("list recovery cases: %w", err)
	}
	return list, nil
}

// Reopen has a case that was left to a person tried again from now; false when there is none.
func (s *Service) Reopen(ctx context.Context, tx pgx.Tx, tenant, orderID string) (bool, error) {
	return s.update(ctx, tx, reopenSQL, tenant, orderID)
}

// firstWait is before a case is looked at: what has just failed is not asked again at once.
const firstWait = time.Second

func (s *Service) openCase(ctx context.Context, tx pgx.Tx, o taken, f finding) error {
	_, err := s.update(ctx, tx, openCaseSQL, o.Tenant, o.OrderID, f.reason, f.evidence, firstWait)
	return err
}

func (s *Service) closeCases(ctx context.Context, tx pgx.Tx, o taken) error {
	_, err := s.update(ctx, tx, closeCasesSQL, o.Tenant, o.OrderID, o.closed())
	return err
}

// closed is the state of the case of an order that has ended.
func (o taken) closed() string {
	if o.status == StatusConfirmed {
		return CaseAccepted
	}
	return CaseCompensated
}
