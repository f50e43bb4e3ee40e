package drill

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
)

func politeClient() Drill {
	return Drill{
		Name: "polite-client", Section: SectionCalls,
		Proves: "a client that waits as long as it is told, plus jitter, and keeps its key gets everything done",
		Settings: []Setting{
			count("operations", 12, 6, 30, "operations at once"),
			count("tokens", 5, 1, 100, "tokens of the server's bucket, and how many come back in a second"),
			count("attempts", 6, 2, 10, "attempts of an operation at most"),
			length("jitter", 250*time.Millisecond, time.Millisecond, 2*time.Second, "longest time that is added to Retry-After"),
		},
		Arms: []Arm{
			{Name: Before, Does: "one attempt each, failures are lost", play: func(ctx context.Context, s *stage) error { return polite(ctx, s, 1) }},
			{Name: After, Does: "waits for Retry-After and jitter, same key", play: func(ctx context.Context, s *stage) error { return polite(ctx, s, s.set.Int("attempts")) }},
		},
		checks: func(s Settings) []Check {
			all, tokens := s.Int("operations"), s.Int("tokens")
			return append(
				expect(Before, "done", between(min(tokens, all), tokens+3), "lost", atLeast(max(all-tokens-3, 0)), "rows", equalFigure("done"), "attempts", all),
				expect(After, "done", all, "lost", 0, "rows", all, "attempts", moreThan(all), "most_attempts_of_a_key", atMost(s.Int("attempts")),
					"keys", all, "earlier_than_told", 0)...)
		},
	}
}

const politeKeys pg.SQL = `SELECT count(DISTINCT key) FROM @schema@.drill_operations`

// polite has all operations begin at once, each with a key of its own.
func polite(ctx context.Context, s *stage, attempts int) error {
	server, meter, err := newLimited(ctx, s, true)
	if err != nil {
		return err
	}
	jitter := s.set.Duration("jitter")
	client, _, err := s.client("limited", resilience.Settings{
		Deadline: time.Minute, Retry: resilience.Retry{Attempts: attempts, Base: jitter, Max: jitter}, Breaker: resilience.Breaker{Failures: always},
		Bulkhead: resilience.Bulkhead{Active: s.set.Int("operations")},
	})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	done, most := 0, 0
	err = together(s.set.Int("operations"), func(int) error {
		ctx, cancel := resilience.WithBudget(ctx, 30*time.Second)
		defer cancel()
		r, err := newPost(ctx, server.url, uuid.NewString(), struct{}{})
		if err != nil {
			return err
		}
		err = client.JSON(r, nil) // an operation that is lost is a figure
		made, _ := resilience.BudgetOf(ctx).Attempts()
		mu.Lock()
		defer mu.Unlock()
		most = max(most, len(made))
		if err == nil {
			done++
		}
		return nil
	})
	s.observe("done", done)
	s.observe("lost", s.set.Int("operations")-done)
	s.observe("attempts", meter.calls())
	s.observe("most_attempts_of_a_key", most)
	s.observe("earlier_than_told", server.early)
	s.observe("mean_spacing", meter.spacing())
	if err != nil {
		return err
	}
	if err := s.observeCount(ctx, "keys", politeKeys); err != nil {
		return err
	}
	return s.observeCount(ctx, "rows", limitedCount)
}
