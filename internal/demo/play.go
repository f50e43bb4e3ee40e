package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/sample"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/watchdog"
)

// outageEvery of the orders that would be paid meets a provider that is away until it is mended.
const outageEvery = 16

// look is the time between two looks at how far everything is.
const look = 200 * time.Millisecond

// play is the story, from the first order to the last effect.
func (r *run) play(ctx context.Context, start func(*watchdog.Watchdog)) error {
	for _, act := range []func(context.Context) error{
		r.submit,
		r.settle,
		r.redriveOutage,
		func(ctx context.Context) error { return r.watchdog(ctx, start) },
		r.redriveLate,
		r.finish,
	} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return nil
}

// submit takes the orders, and lets a message through that no service can read.
func (r *run) submit(ctx context.Context) error {
	known, bad := 0, 0
	var all []orders.Order
	err := sample.Read(r.o.Orders, func(_ int, o orders.Order) error {
		all = append(all, o)
		return o.Validate()
	})
	if err != nil {
		return fmt.Errorf("read orders: %w", err)
	}
	r.lines = len(all)
	if err := r.breakProvider(all); err != nil {
		return err
	}
	for _, o := range all {
		submitted, err := r.shop.Submit(ctx, o)
		if err != nil {
			return err
		}
		if !submitted.Created {
			known++
		}
		r.orders[submitted.ID] = o
		if len(r.orders)%40 == 0 {
			r.o.Live(fmt.Sprintf("submitted %d orders", len(r.orders)))
		}
		if len(r.orders) == len(all)/2 && bad == 0 {
			bad++
			if err := r.enqueueMalformed(ctx); err != nil {
				return err
			}
		}
	}
	r.say("submitted   %d orders in %d lines (%d sent twice, taken once), each with its event in one transaction; 1 malformed message",
		len(r.orders), r.lines, known)
	return nil
}

// breakProvider has the payments fail as the sample says, and those of the outage until it is mended.
func (r *run) breakProvider(all []orders.Order) error {
	paid := 0
	var rules []provider.Rule
	for _, o := range all {
		if status, _ := sample.Expected(o); status != orders.StatusConfirmed || o.Card != provider.CardGood {
			continue
		}
		if paid++; paid%outageEvery == 0 {
			r.outage[o.ID()] = true
			rules = append(rules, provider.Rule{Key: o.ID(), Fault: provider.FaultUnavailable})
		}
	}
	return r.simulator.SetRules(append(rules, sample.Rules()...)...)
}

func (r *run) enqueueMalformed(ctx context.Context) error {
	box, err := outbox.New(outbox.Options{Schema: r.o.Prefix})
	if err != nil {
		return err
	}
	r.malformed = message.NewID()
	m := message.Message{
		ID: r.malformed, Type: event.TypeOrderCreated, Key: "half-an-order", Exchange: event.Exchange, Source: "demo",
		Payload: []byte(`{"orderId": "half-an-order", "tenant":`),
	}
	return pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error {
		_, err := box.Enqueue(ctx, tx, m)
		return err
	})
}

// settle waits until all has ended that can: what is left are the payments of the outage and the stuck order, whose
// retries are used up.
func (r *run) settle(ctx context.Context) error {
	stuck := len(r.outage) + r.expecting(event.ReasonPaymentTimeout)
	err := r.until(ctx, func(f figures) bool { return f.pending == stuck && f.dead[payments.Queue] == stuck })
	if err != nil {
		return fmt.Errorf("wait for the orders: %w", err)
	}
	f, err := r.figures(ctx)
	if err != nil {
		return err
	}
	r.say("settled     %d orders; %d retries after transient failures; dead letters: %s", len(r.orders)-f.pending, f.retries, f.deadText(r.spec))
	return nil
}

// expecting counts the orders that should end for a reason.
func (r *run) expecting(reason string) int {
	n := 0
	for _, o := range r.orders {
		if _, why := sample.Expected(o); why == reason {
			n++
		}
	}
	return n
}

// redriveOutage mends the provider and brings the payments back that it had failed.
func (r *run) redriveOutage(ctx context.Context) error {
	if err := r.simulator.SetRules(sample.Rules()...); err != nil {
		return err
	}
	letters, err := r.letters.Show(ctx, deadletter.ShowRequest{Queue: payments.Queue, Limit: deadletter.MaxShow, Preview: -1, Who: r.o.Who})
	if err != nil {
		return err
	}
	var ids []string
	for _, letter := range letters {
		if r.outage[letter.Key] {
			ids = append(ids, letter.ID)
		}
	}
	if len(ids) == 0 {
		return errors.New("there is no dead letter of the provider's outage, which was to be redriven")
	}
	if err := r.redrive(ctx, payments.Queue, deadletter.Filter{IDs: ids}); err != nil {
		return err
	}
	r.say("mended      the provider is back for %d orders: %d payments redriven from %s", len(r.outage), len(ids), deadletter.DLQ(payments.Queue))
	stuck := r.expecting(event.ReasonPaymentTimeout)
	if err := r.until(ctx, func(f figures) bool { return f.pending == stuck }); err != nil {
		return fmt.Errorf("wait for the redriven payments: %w", err)
	}
	return nil
}

func (r *run) redrive(ctx context.Context, queue string, filter deadletter.Filter) error {
	result, err := r.letters.Redrive(ctx, deadletter.RedriveRequest{Common: deadletter.Common{
		Queue: queue, Filter: filter, Who: r.o.Who, Reason: "demonstration: the cause is mended",
	}})
	r.redriven[queue] += result.Done
	if err == nil && result.Left.Failed() > 0 {
		err = fmt.Errorf("%d of %d dead letters of %s could not be redriven", result.Left.Failed(), result.Found, queue)
	}
	return err
}

// watchdog ends what is still stuck. It starts only now: on a slow machine its short limit would meet orders that are merely waiting.
func (r *run) watchdog(ctx context.Context, start func(*watchdog.Watchdog)) error {
	w, err := watchdog.New(watchdog.Options{
		Pool: r.pool, Schema: r.o.Prefix, Interval: watchInterval, Logger: r.o.Logger,
		Rules: []watchdog.Rule{shop.PaymentTimeout(r.o.Prefix, paymentLimit), shop.ReservationExpired(r.o.Prefix)},
	})
	if err != nil {
		return err
	}
	start(w)
	if err := r.until(ctx, func(f figures) bool { return f.pending == 0 }); err != nil {
		return fmt.Errorf("wait for the watchdog: %w", err)
	}
	r.say("watchdog    cancelled %d stuck order after %s without payment (10 min in earnest); its stock is released", r.expecting(event.ReasonPaymentTimeout), paymentLimit)
	return nil
}

// redriveLate brings the charge of the cancelled order back: the services see that it comes too late.
func (r *run) redriveLate(ctx context.Context) error {
	if err := r.simulator.SetRules(); err != nil {
		return err
	}
	before := r.redriven[payments.Queue]
	if err := r.redrive(ctx, payments.Queue, deadletter.Filter{}); err != nil {
		return err
	}
	r.say("redriven    %d payment of the cancelled order: it comes too late, and nothing is charged", r.redriven[payments.Queue]-before)
	return nil
}

// finish waits until nothing is on its way any more.
func (r *run) finish(ctx context.Context) error {
	err := r.until(ctx, func(f figures) bool {
		return f.waiting == 0 && f.handled+f.letters() == f.due && f.dead[inventory.Queue] > 0 && f.dead[payments.Queue] == 0
	})
	if err != nil {
		return fmt.Errorf("wait for the last messages: %w", err)
	}
	return nil
}

// until waits for a condition, and shows how far everything is.
func (r *run) until(ctx context.Context, reached func(figures) bool) error {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		f, err := r.figures(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return err
		case reached(f):
			return nil
		}
		r.o.Live(f.String())
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// String is the line of progress.
func (f figures) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d of %d orders ended, events: %d enqueued, %d published, %d of %d deliveries handled, %d retries, %d dead letters",
		f.orders-f.pending, f.orders, f.enqueued, f.published, f.handled, f.due, f.retries, f.letters())
	return text.String()
}
