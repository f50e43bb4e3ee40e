package orders

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/resilience"
)

// attempts are the calls that were made for an order, as its books keep them: never what was sent or answered.
type attempts []attempt

type attempt struct {
	operation string
	resilience.Attempt
}

// call runs an operation and notes the attempts that it took; one that was refused before it was made is noted as number 0.
func (a *attempts) call(ctx context.Context, operation, dependency string, do func(ctx context.Context) error) error {
	if resilience.BudgetOf(ctx) == nil {
		return a.unbounded(ctx, operation, dependency, do)
	}
	before, start := recorded(ctx), time.Now()
	err := do(ctx)
	kept, _ := resilience.BudgetOf(ctx).Attempts()
	made := min(recorded(ctx)-before, len(kept))
	for _, one := range kept[len(kept)-made:] {
		*a = append(*a, attempt{operation, one})
	}
	if made == 0 {
		left, limited := resilience.Left(ctx)
		if !limited {
			left = -1
		}
		*a = append(*a, attempt{operation, resilience.Attempt{Dependency: dependency, Class: resilience.Classify(err), Start: start, Took: time.Since(start), Left: left}})
	}
	return err
}

func (a *attempts) unbounded(ctx context.Context, operation, dependency string, do func(ctx context.Context) error) error {
	ctx, cancel := resilience.WithBudget(ctx, time.Hour)
	defer cancel()
	return a.call(ctx, operation, dependency, do)
}

func recorded(ctx context.Context) int {
	kept, forgotten := resilience.BudgetOf(ctx).Attempts()
	return len(kept) + forgotten
}

const attemptsSQL store.SQL = `
INSERT INTO @schema@.order_attempts (order_id, tenant, case_id, operation, dependency, number, class, started_at, took_ms, left_ms)
SELECT $1::text, $2::text, $3::bigint, * FROM unnest($4::text[], $5::text[], $6::integer[], $7::text[], $8::timestamptz[], $9::bigint[], $10::bigint[])`

// write appends the attempts to an order's books. Case 0 is none.
func (a attempts) write(ctx context.Context, tx pgx.Tx, schema string, ref event.Ref, caseID int64) error {
	if len(a) == 0 {
		return nil
	}
	var operations, dependencies, classes []string
	var numbers []int
	var starts []time.Time
	var took, left []int64
	for _, one := range a {
		operations, dependencies = append(operations, one.operation), append(dependencies, one.Dependency)
		numbers, classes = append(numbers, one.Number), append(classes, string(cmp.Or(one.Class, "done")))
		starts, took, left = append(starts, one.Start), append(took, one.Took.Milliseconds()), append(left, one.Left.Milliseconds())
	}
	var of *int64
	if caseID != 0 {
		of = &caseID
	}
	_, err := tx.Exec(ctx, attemptsSQL.In(schema), ref.OrderID, ref.Tenant, of, operations, dependencies, numbers, classes, starts, took, left)
	if err != nil {
		return fmt.Errorf("note attempts: %w", err)
	}
	return nil
}
