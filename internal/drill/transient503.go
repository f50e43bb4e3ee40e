package drill

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/message"
)

func transient503() Drill {
	return Drill{
		Name: "transient-503", Section: SectionQueues,
		Proves: "a message that meets a passing failure waits in the retry queue, counts its attempts, keeps its headers, and is done",
		Settings: []Setting{
			count("failures", 2, 1, 4, "answers 503 of the payment provider before it charges"),
			length("delay", time.Second, time.Second, 10*time.Second, "delay of the retry queue (30s by default)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "a failure is logged and forgotten", play: chargeOnce},
			{Name: After, Does: "a retry queue", play: chargeRetried},
		},
		checks: func(s Settings) []Check {
			n := s.Int("failures")
			counters := make([]int, n+1)
			for i := range counters {
				counters[i] = i
			}
			return append(
				expect(Before, "deliveries", 1, "charges", 0, "effects", 0),
				expect(After, "x_attempts", counters, "visits_to_retry_queue", n, "deliveries", n+1, "headers_kept", true, "shortest_wait", atLeast(s.Duration("delay")*9/10),
					"charges", 1, "effects", 1, "dead_letters", 0)...)
		},
	}
}

const paymentKey = "order-1"

// withHeaders is an event with headers of its own and everything that must survive.
func withHeaders(eventType, key string) message.Message {
	m := newEvent(eventType, key, map[string]string{"orderId": key})
	m.Headers = message.Headers{"tenant": "acme", "priority": int64(7)}
	m.CorrelationID, m.RequestID = "correlation-1", "request-1"
	m.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	return m
}

// keptHeaders says whether a delivery has all that withHeaders gave.
func keptHeaders(d delivery) bool {
	return d.Headers["tenant"] == "acme" && d.Headers["priority"] == int64(7) && d.CorrelationID == "correlation-1" && d.RequestID == "request-1" &&
		d.TraceParent == "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" && d.Type == "drill.charge"
}

// failingProvider answers 503 a few times.
func (s *stage) failingProvider(ctx context.Context) (*provider.Simulator, *provider.Client, error) {
	simulator := provider.NewSimulator()
	if err := simulator.SetRules(provider.Rule{Fault: provider.FaultUnavailable, Times: s.set.Int("failures")}); err != nil {
		return nil, nil, err
	}
	url, err := s.serve(ctx, simulator)
	if err != nil {
		return nil, nil, err
	}
	client, err := provider.NewClient(provider.ClientOptions{URL: url, Transport: s.transport()})
	return simulator, client, err
}

func charge(ctx context.Context, client *provider.Client, key string) error {
	_, err := client.Charge(ctx, key, provider.ChargeRequest{OrderID: key, Tenant: "acme", AmountCents: 100, Currency: "EUR", Card: provider.CardGood})
	return err
}

func chargeOnce(ctx context.Context, s *stage) error {
	l, err := s.bare(ctx)
	if err != nil {
		return err
	}
	simulator, client, err := s.failingProvider(ctx)
	if err != nil {
		return err
	}
	if err := s.enqueue(ctx, withHeaders("drill.charge", paymentKey)); err != nil {
		return err
	}
	err = l.handle(ctx, false, func(ctx context.Context, m message.Message) error { return charge(ctx, client, m.Key) },
		func() bool { return len(l.seen.of(paymentKey)) > 0 })
	s.observe("deliveries", len(l.seen.of("")))
	s.observe("charges", len(simulator.Ledger().Charges))
	if err != nil {
		return err
	}
	return s.observeCount(ctx, "effects", effectsCount)
}

func chargeRetried(ctx context.Context, s *stage) error {
	simulator, client, err := s.failingProvider(ctx)
	if err != nil {
		return err
	}
	l, err := s.line(ctx, work("drill.payments", 5, s.set.Duration("delay")), func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		if err := charge(ctx, client, m.Key); err != nil {
			return err
		}
		return s.effect(ctx, tx, m)
	}, nil)
	if err != nil {
		return err
	}
	if err := s.enqueue(ctx, withHeaders("drill.charge", paymentKey)); err != nil {
		return err
	}
	if err := l.effects(ctx, 1); err != nil {
		return err
	}
	all := l.seen.of(paymentKey)
	kept, shortest := true, time.Hour
	for i, d := range all {
		kept = kept && keptHeaders(d)
		if i > 0 {
			shortest = min(shortest, d.at.Sub(all[i-1].at))
		}
	}
	s.observe("deliveries", len(all))
	s.observe("x_attempts", l.seen.attempts(paymentKey))
	s.observe("visits_to_retry_queue", l.retried())
	s.observe("headers_kept", kept)
	s.observe("shortest_wait", shortest)
	s.observe("charges", len(simulator.Ledger().Charges))
	dead, err := ready(ctx, l.conn, l.queue.DLQ())
	if err != nil {
		return err
	}
	s.observe("dead_letters", dead)
	return s.observeCount(ctx, "effects", effectsCount)
}
