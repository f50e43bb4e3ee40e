package orders

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

// DefaultFinishWithin is how old an order in recovery may be to go on: below the 15 min of its reservation.
const DefaultFinishWithin = 10 * time.Minute

// RecoveryOptions of a recovery.
type RecoveryOptions struct {
	// Pool of the service's database. Required.
	Pool *pgxpool.Pool
	// Inventory and Payments are asked. Required.
	Inventory Inventory
	Payments  Payments
	// Store remembers the requests whose answers are pending, and gets the final ones. Default: none does.
	Store *idempotency.Store
	// Every is the time between two rounds. Default: 1 s.
	Every time.Duration
	// Grace is how old an order without an answer must be before it counts as interrupted: longer than a checkout takes.
	// Default: 30 s.
	Grace time.Duration
	// FinishWithin is how old an order may be to go on; an older one is compensated. Keep it below the time that stock is held.
	// Default: 10 min.
	FinishWithin time.Duration
	// GiveUpAfter is how long a case is tried before it is left to a person. Default: 1 h.
	GiveUpAfter time.Duration
	// Wait before a case is looked at again; it doubles up to MaxWait, with jitter. Default: 1 s, 1 min.
	Wait, MaxWait time.Duration
	// Lease is how long a case belongs to whoever took it; its calls get half of it. Default: 30 s.
	Lease time.Duration
	// Batch is how many cases are taken in a round, and Parallel how many are worked on at a time. Default: 20, 4.
	Batch, Parallel int
	// Logger takes a line for each case that is closed or left to a person, and for each round that failed. Default: none.
	Logger zerolog.Logger
}

// Recovery finishes orders whose outcome is not known. It asks the services that know, then goes on where the order stopped, or
// releases what it holds and cancels it. What stays unknown for too long is left to a person, with the evidence. Several may run:
// a case belongs to whoever took it last. It is safe for concurrent use.
type Recovery struct {
	service *Service
	options RecoveryOptions
	ask     checkout
}

// Recovery returns a recovery of the service's orders. It does no I/O.
func (s *Service) Recovery(o RecoveryOptions) (*Recovery, error) {
	if o.Pool == nil || o.Inventory == nil || o.Payments == nil {
		return nil, errors.New("orders: a recovery needs Pool, Inventory and Payments")
	}
	o.Every, o.Grace = cmp.Or(o.Every, time.Second), cmp.Or(o.Grace, 30*time.Second)
	o.FinishWithin, o.GiveUpAfter = cmp.Or(o.FinishWithin, DefaultFinishWithin), cmp.Or(o.GiveUpAfter, time.Hour)
	o.Wait, o.MaxWait, o.Lease = cmp.Or(o.Wait, time.Second), cmp.Or(o.MaxWait, time.Minute), cmp.Or(o.Lease, 30*time.Second)
	o.Batch, o.Parallel = cmp.Or(o.Batch, 20), cmp.Or(o.Parallel, 4)
	return &Recovery{service: s, options: o, ask: checkout{o.Inventory, o.Payments}}, nil
}

// Recovered counts what a round did.
type Recovered struct {
	// Taken cases; each of them is counted in one of the others, unless somebody else took it meanwhile.
	Taken       int `json:"taken"`
	Accepted    int `json:"accepted"`
	Compensated int `json:"compensated"`
	Manual      int `json:"manual"`
	Open        int `json:"open"`
}

// Run works in rounds until ctx ends; then it returns nil. A round that fails is logged and tried again.
func (r *Recovery) Run(ctx context.Context) error {
	ticker := time.NewTicker(r.options.Every)
	defer ticker.Stop()
	for {
		if _, err := r.Once(ctx); err != nil && ctx.Err() == nil {
			r.options.Logger.Warn().Err(err).Msg("recovery of orders failed, tried again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// Once opens cases of orders that were interrupted, and works on those that are due, up to Batch.
func (r *Recovery) Once(ctx context.Context) (Recovered, error) {
	o, schema := r.options, r.service.schema
	if _, err := o.Pool.Exec(ctx, sweepSQL.In(schema), o.Grace); err != nil {
		return Recovered{}, fmt.Errorf("find interrupted orders: %w", err)
	}
	rows, _ := o.Pool.Query(ctx, claimCasesSQL.In(schema), o.Batch, o.Lease) // its error is that of the rows
	due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[claim])
	if err != nil {
		return Recovered{}, fmt.Errorf("take recovery cases: %w", err)
	}
	total, mu := Recovered{Taken: len(due)}, sync.Mutex{}
	ctx = web.Recovering(ctx)
	var group errgroup.Group // one that cannot be written down does not end the work on the others
	group.SetLimit(o.Parallel)
	for _, c := range due {
		group.Go(func() error {
			state, err := r.work(ctx, c)
			mu.Lock()
			defer mu.Unlock()
			total.count(state)
			return err
		})
	}
	err = group.Wait()
	return total, err
}

func (t *Recovered) count(state string) {
	switch state {
	case CaseAccepted:
		t.Accepted++
	case CaseCompensated:
		t.Compensated++
	case CaseManual:
		t.Manual++
	case CaseOpen:
		t.Open++
	}
}

// claim is a case that was taken.
type claim struct {
	ID      int64
	OrderID string
	Version int
	Asked   int
	Age     time.Duration
}

// work asks for one case and writes down what came of it; the state is "" when somebody else has taken it meanwhile.
func (r *Recovery) work(ctx context.Context, c claim) (state string, err error) {
	o, err := r.service.taken(ctx, r.options.Pool, c.OrderID)
	if err != nil {
		return "", err
	}
	within, cancel := resilience.WithBudget(ctx, r.options.Lease/2)
	defer cancel()
	f := r.look(within, o)
	if f.end == endNothing {
		f.end = endOpen // the customer was told that it is being recovered
	}
	if f.end == endManual || f.end == endOpen && c.Age >= r.options.GiveUpAfter {
		state = CaseManual
	}
	err = pgx.BeginFunc(ctx, r.options.Pool, func(tx pgx.Tx) error {
		state, err = r.close(ctx, tx, c, o, f, state)
		return err
	})
	if errors.Is(err, errTaken) {
		return "", nil
	}
	if err == nil {
		r.tell(state, o, f)
	}
	return state, err
}

// errTaken: the case has been moved by somebody else; nothing is written.
var errTaken = errors.New("the case was taken by somebody else")

// close writes what was found, in one transaction: the order, its case, and the answer to whoever asked for it.
func (r *Recovery) close(ctx context.Context, tx pgx.Tx, c claim, o taken, f finding, state string) (string, error) {
	now, err := r.service.conclude(ctx, tx, o, f, c.ID)
	if err != nil {
		return "", err
	}
	if now.ended() {
		state = now.closed()
	}
	state = cmp.Or(state, CaseOpen)
	moved, err := r.service.update(ctx, tx, moveCaseSQL, c.ID, c.Version, state, f.reason, f.evidence, r.wait(c, f))
	if err != nil {
		return "", err
	}
	if !moved {
		return "", errTaken
	}
	if now.ended() && r.options.Store != nil {
		_, err = r.options.Store.Resolve(ctx, tx, idempotency.Key{Caller: now.Tenant, Key: now.key}, now.answer(nil))
	}
	return state, err
}

// wait is until a case is looked at again: longer each time, and not before a dependency wants to be asked.
func (r *Recovery) wait(c claim, f finding) time.Duration {
	wait := min(r.options.Wait<<min(c.Asked, 20), r.options.MaxWait)
	asked, _ := resilience.DelayOf(f.why)
	return max(wait/2+rand.N(wait/2+1), asked) //nolint:gosec // spreads load
}

func (r *Recovery) tell(state string, o taken, f finding) {
	level := zerolog.InfoLevel
	if state == CaseManual {
		level = zerolog.ErrorLevel
	}
	if state != CaseOpen {
		r.options.Logger.WithLevel(level).Str("order", o.OrderID).Str("tenant", o.Tenant).Str("state", state).Str("reason", f.reason).
			Interface("evidence", f.evidence).Msg("recovery case")
	}
}

// look asks who knows, and then goes on or gives up.
func (r *Recovery) look(ctx context.Context, o taken) finding {
	f := finding{evidence: map[string]string{"order": o.status}}
	late := o.age >= r.options.FinishWithin
	switch o.status {
	case StatusConfirmed:
		f.end, f.reason = endAccepted, ""
		return f
	case StatusCancelled:
		r.ask.giveUp(ctx, o, &f, cmp.Or(o.reason, event.ReasonPaymentTimeout))
		return f
	}
	if !r.reserved(ctx, o, &f, late) || !r.paid(ctx, o, &f, late) {
		return f
	}
	f.end = endAccepted
	return f
}

// reserved reports whether stock is held, after it asked and, where nothing is known, reserved.
func (r *Recovery) reserved(ctx context.Context, o taken, f *finding, late bool) bool {
	var now inventory.Reservation
	err := f.attempts.call(ctx, "ask for reservation", inventory.Name, func(ctx context.Context) (err error) {
		now, err = r.ask.inventory.Reservation(ctx, o.Ref)
		return err
	})
	switch {
	case errors.Is(err, inventory.ErrUnknown) && late:
		r.ask.giveUp(ctx, o, f, event.ReasonPaymentTimeout)
		return false
	case errors.Is(err, inventory.ErrUnknown):
		return r.ask.reserve(ctx, o, f)
	case err != nil:
		f.unknown(ReasonReservationUnknown, "reservation", err)
		return false
	}
	f.evidence["reservation"] = now.Status
	if !now.Holds() {
		r.ask.giveUp(ctx, o, f, cmp.Or(now.Reason, event.ReasonReservationExpired))
		return false
	}
	f.held = now.ExpiresAt
	return true
}

// paid reports whether the order is paid, after it asked and, where no payment was begun, authorised one.
func (r *Recovery) paid(ctx context.Context, o taken, f *finding, late bool) bool {
	err := f.attempts.call(ctx, "ask for payment", payments.Name, func(ctx context.Context) (err error) {
		f.chargeID, err = r.ask.payments.Payment(ctx, o.Ref)
		return err
	})
	begun := !errors.Is(err, payments.ErrUnknown)
	if !begun && !late {
		return r.ask.authorise(ctx, o, f)
	}
	_, pending := errors.AsType[*payments.PendingError](err)
	if late && (!begun || pending) {
		f.evidence["payment"] = "not known in time"
		r.ask.giveUp(ctx, o, f, event.ReasonPaymentTimeout)
		return false
	}
	return r.ask.paid(ctx, o, f, err)
}
