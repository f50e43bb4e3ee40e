package consumer_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// provider is a dependency that can be away, behind a policy whose circuit is open from the first failure on.
type provider struct {
	policy *policy.Policy
	away   atomic.Bool
	called atomic.Int32
}

func newProvider(t *testing.T, open time.Duration) *provider {
	t.Helper()
	p, err := policy.New(policy.Options{Name: "payments", Logger: testkit.Logger(t), Settings: resilience.Settings{
		Breaker: resilience.Breaker{Failures: 1, Open: open}, Bulkhead: resilience.Bulkhead{Active: 4, Reserve: 1},
	}})
	require.NoError(t, err)
	return &provider{policy: p}
}

func (p *provider) charge(ctx context.Context) error {
	return p.policy.Do(ctx, policy.Call{}, func(context.Context) error {
		p.called.Add(1)
		if p.away.Load() {
			return &resilience.StatusError{Status: 503}
		}
		return nil
	})
}

// While the circuit is open its queue is paused: nothing moves, nothing is counted, the dependency is left alone but for probes, and
// the first that succeeds lets the rest go on.
func TestAnOpenCircuitPausesItsQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t, worldOptions{})
	payments := newProvider(t, 300*time.Millisecond)
	payments.away.Store(true)
	var counted atomic.Int32
	o := w.options(func(ctx context.Context, tx pgx.Tx, m message.Message) error {
		counted.Store(max(counted.Load(), int32(m.Attempts)))
		if err := payments.charge(ctx); err != nil {
			return err
		}
		return w.effect(ctx, tx, m)
	})
	o.MaxAttempts = 2
	ready := watchReady(&o)
	w.start(o)
	w.publish("a", "b", "c")
	ready.await(t, "a dependency is away")
	testkit.Eventually(t, soon, "more failures than all messages have attempts", func() bool { return payments.called.Load() >= 12 })
	require.Zero(t, w.depth("q.dlq"))
	require.Empty(t, w.effects())
	payments.away.Store(false)
	w.awaitEffects(3)
	ready.await(t, "")
	require.Equal(t, policy.Closed, payments.policy.State())
	require.LessOrEqual(t, counted.Load(), int32(1), "only the calls that opened the circuit were attempts")
	w.awaitEmpty("q.retry", "q.dlq")
}

// By setting, what meets the open circuit goes round by the retry tier, however often, and what does not need it goes on.
func TestAnOpenCircuitMaySendMessagesRound(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]bool{"singly": false, "in batches": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, worldOptions{})
			payments := newProvider(t, 100*time.Millisecond)
			payments.away.Store(true)
			var rounds atomic.Int32
			handler := func(ctx context.Context, tx pgx.Tx, m message.Message) error {
				if m.ID[0] == 'p' {
					rounds.Add(1)
					if err := payments.charge(ctx); err != nil {
						return err
					}
				}
				return w.effect(ctx, tx, m)
			}
			o := w.options(handler)
			o.Absence, o.MaxAttempts = consumer.AbsenceRetry, 3
			if batch {
				o.Handler = nil
				o.Batch = func(ctx context.Context, tx pgx.Tx, msgs []message.Message) error {
					for _, m := range msgs {
						if err := handler(ctx, tx, m); err != nil {
							return err
						}
					}
					return nil
				}
			}
			ready := watchReady(&o)
			w.start(o)
			w.publish("p1", "p2")
			for i := range 10 {
				w.publish(strconv.Itoa(i))
			}
			w.awaitEffects(10)
			testkit.Eventually(t, soon, "more rounds than attempts are allowed", func() bool { return rounds.Load() >= 8 })
			ready.await(t, "")
			payments.away.Store(false)
			w.awaitEffects(12)
			w.awaitEmpty("q.retry", "q.dlq")
		})
	}
}
