package drill

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

// window in which the densest burst is looked for.
const stormWindow = 200 * time.Millisecond

func retryStorm() Drill {
	return Drill{
		Name: "retry-storm", Section: SectionCalls,
		Proves: "waits with jitter spread retries, and one idempotency key per operation makes one order of all attempts",
		Settings: []Setting{
			count("clients", 5, 2, 50, "clients that order at the same moment"),
			count("attempts", 5, 2, 8, "attempts of each; the answers to all but the last are lost after the effect"),
			length("base", 250*time.Millisecond, 50*time.Millisecond, 2*time.Second, "longest wait before the second attempt, doubled for each further one (full jitter)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "retries at once, one key per client", play: func(ctx context.Context, s *stage) error { return storm(ctx, s, stormNaive, true) }},
			{Name: "new-keys", Does: "retries at once, a new key per attempt", play: func(ctx context.Context, s *stage) error { return storm(ctx, s, stormNaive, false) }},
			{Name: After, Does: "exponential waits with full jitter, one key per client", play: func(ctx context.Context, s *stage) error { return storm(ctx, s, stormPolite, true) }},
		},
		checks: func(s Settings) []Check {
			clients, attempts := s.Int("clients"), s.Int("clients")*s.Int("attempts")
			return append(append(
				expect(Before, "attempts", attempts, "orders", clients, "mean_spacing", lessThan(50*time.Millisecond), "most_in_200ms", moreThan(attempts/2)),
				expect("new-keys", "attempts", attempts, "orders", attempts)...),
				expect(After, "attempts", attempts, "orders", clients, "unique_ids", clients, "clients_served", clients,
					"mean_spacing", atLeast(50*time.Millisecond), "most_in_200ms", atMost(attempts/2))...)
		},
	}
}

const (
	stormTable pg.SQL = `CREATE TABLE @schema@.drill_orders (id text PRIMARY KEY, client text NOT NULL)`
	stormOrder pg.SQL = `INSERT INTO @schema@.drill_orders VALUES ($1, $2)`
	stormCount pg.SQL = `SELECT count(*) FROM @schema@.drill_orders`
)

// headerClient names who orders.
const headerClient = "X-Client"

// stormClient places an order by several attempts and returns its id; "" when no answer came.
type stormClient func(ctx context.Context, s *stage, url, client string, key func() string) (id string, err error)

// storm has all clients order at once from a server whose answers are lost until the last attempt.
func storm(ctx context.Context, s *stage, order stormClient, oneKey bool) error {
	shop, meter, err := stormShop(ctx, s)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	ids, served := map[string]bool{}, 0
	err = together(s.set.Int("clients"), func(i int) error {
		fixed := uuid.NewString()
		key := func() string {
			if oneKey {
				return fixed
			}
			return uuid.NewString()
		}
		id, err := order(ctx, s, shop, fmt.Sprintf("client-%d", i), key)
		mu.Lock()
		defer mu.Unlock()
		if id != "" {
			ids[id] = true
			served++
		}
		return err
	})
	if err != nil {
		return err
	}
	s.observe("attempts", meter.calls())
	s.observe("unique_ids", len(ids))
	s.observe("clients_served", served)
	s.observe("mean_spacing", meter.spacing())
	s.observe("most_in_200ms", meter.densest(stormWindow))
	return s.observeCount(ctx, "orders", stormCount)
}

// stormShop takes orders through the idempotency store, and drops the answers to all but the last attempt of a client.
func stormShop(ctx context.Context, s *stage) (url string, attempts *meter, err error) {
	pool, err := s.database(ctx)
	if err != nil {
		return "", nil, err
	}
	if err := s.exec(ctx, stormTable); err != nil {
		return "", nil, err
	}
	store, err := idempotency.New(idempotency.Options{
		Pool: pool, Schema: s.schema, Logger: s.logger,
		Caller: func(r *http.Request) (string, error) { return r.Header.Get(headerClient), nil },
	})
	if err != nil {
		return "", nil, err
	}
	take := store.Handle(func(ctx context.Context, tx pgx.Tx, r *http.Request) (idempotency.Answer, error) { //nolint:contextcheck // the request's
		id := uuid.NewString()
		_, err := tx.Exec(ctx, stormOrder.In(s.schema), id, r.Header.Get(headerClient))
		return idempotency.JSON(http.StatusCreated, map[string]string{"id": id}), err
	})
	attempts = &meter{}
	url, err = s.serve(ctx, attempts.wrap(loseAnswers(s.set.Int("attempts")-1, take)))
	return url, attempts, err
}

// loseAnswers does the work and cuts the connection, for the first n requests of each client.
func loseAnswers(n int, h http.Handler) http.Handler {
	var mu sync.Mutex
	seen := map[string]int{}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen[r.Header.Get(headerClient)]++
		lose := seen[r.Header.Get(headerClient)] <= n
		mu.Unlock()
		if !lose {
			h.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(nowhere{http.Header{}}, r)
		panic(http.ErrAbortHandler)
	})
}

// nowhere is where a lost answer goes.
type nowhere struct{ header http.Header }

func (n nowhere) Header() http.Header       { return n.header }
func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) WriteHeader(int)             {}

type placed struct {
	ID string `json:"id"`
}

// stormNaive tries again at once.
func stormNaive(ctx context.Context, s *stage, url, client string, key func() string) (string, error) {
	for range s.set.Int("attempts") {
		r, err := newPost(ctx, url, key(), struct{}{})
		if err != nil {
			return "", err
		}
		r.Header.Set(headerClient, client)
		// A transport of its own for each attempt: net/http would send a request with a key again by itself.
		if a, err := s.naive().send(r); err == nil {
			var p placed
			a.json(&p)
			return p.ID, nil
		}
	}
	return "", nil
}

// stormPolite leaves the attempts to the policy.
func stormPolite(ctx context.Context, s *stage, url, client string, key func() string) (string, error) {
	c, _, err := s.client("shop", resilience.Settings{
		Retry: resilience.Retry{Attempts: s.set.Int("attempts"), Base: s.set.Duration("base"), Max: 8 * s.set.Duration("base")},
	})
	if err != nil {
		return "", err
	}
	r, err := newPost(ctx, url, key(), struct{}{})
	if err != nil {
		return "", err
	}
	r.Header.Set(headerClient, client)
	var p placed
	_ = c.JSON(r, &p) // a client that is not served is a figure
	return p.ID, ctx.Err()
}
