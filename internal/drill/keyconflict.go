package drill

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

func keyConflict() Drill {
	return Drill{
		Name: "key-conflict", Section: SectionOutcomes,
		Proves: "an idempotency key that comes again with another payload is refused, and nothing is applied",
		Settings: []Setting{
			count("conflicts", 5, 1, 100, "further payloads under the key, all at once"),
		},
		Arms: []Arm{
			{Name: Before, Does: "keys are compared, payloads are not", play: func(ctx context.Context, s *stage) error { return conflict(ctx, s, false) }},
			{Name: After, Does: "keys belong to the hash of their request", play: func(ctx context.Context, s *stage) error { return conflict(ctx, s, true) }},
		},
		checks: func(s Settings) []Check {
			n := s.Int("conflicts")
			return append(
				expect(Before, "refused", 0, "told_that_it_was_done", n, "applied", 1),
				expect(After, "first", http.StatusCreated, "refused", n, "with_code", n, "told_that_it_was_done", 0, "applied", 1, "same_request_again", http.StatusCreated)...)
		},
	}
}

const (
	conflictTable pg.SQL = `CREATE TABLE @schema@.drill_payments (key text PRIMARY KEY, cents integer NOT NULL)`
	conflictAdd   pg.SQL = `INSERT INTO @schema@.drill_payments VALUES ($1, $2) ON CONFLICT DO NOTHING`
	conflictCount pg.SQL = `SELECT count(*) FROM @schema@.drill_payments`
)

type payment struct {
	Cents int `json:"cents"`
}

// conflict pays once, and then sends other amounts under the same key.
func conflict(ctx context.Context, s *stage, hashed bool) error {
	pool, err := s.database(ctx)
	if err != nil {
		return err
	}
	if err := s.exec(ctx, conflictTable); err != nil {
		return err
	}
	store, err := idempotency.New(idempotency.Options{
		Pool: pool, Schema: s.schema, Logger: s.logger, Caller: func(*http.Request) (string, error) { return "shop", nil },
	})
	if err != nil {
		return err
	}
	pay := func(ctx context.Context, tx pgx.Tx, r *http.Request) error {
		var p payment
		if err := readJSON(r, &p); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, conflictAdd.In(s.schema), r.Header.Get(idempotency.HeaderKey), p.Cents)
		return err
	}
	h := store.Handle(func(ctx context.Context, tx pgx.Tx, r *http.Request) (idempotency.Answer, error) { //nolint:contextcheck // the request's
		return idempotency.JSON(http.StatusCreated, struct{}{}), pay(ctx, tx, r)
	})
	if !hashed {
		h = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := pgx.BeginFunc(r.Context(), pool, func(tx pgx.Tx) error { return pay(r.Context(), tx, r) }); err != nil { //nolint:contextcheck // the request's
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			w.WriteHeader(http.StatusCreated)
		})
	}
	url, err := s.serve(ctx, h)
	if err != nil {
		return err
	}
	return s.observeConflict(ctx, url)
}

func (s *stage) observeConflict(ctx context.Context, url string) error {
	client := s.naive()
	send := func(cents int) (answer, error) {
		r, err := newPost(ctx, url, "payment-1", payment{cents})
		if err != nil {
			return answer{}, err
		}
		return client.send(r)
	}
	first, err := send(100)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	refused, coded, told := 0, 0, 0
	err = together(s.set.Int("conflicts"), func(i int) error {
		a, err := send(200 + i)
		var problem struct {
			Code resilience.Code `json:"code"`
		}
		a.json(&problem)
		mu.Lock()
		defer mu.Unlock()
		switch a.status {
		case http.StatusUnprocessableEntity:
			refused++
			if problem.Code == resilience.CodeIdempotencyKeyReused {
				coded++
			}
		case http.StatusCreated:
			told++
		}
		return err
	})
	if err != nil {
		return err
	}
	again, err := send(100)
	s.observe("first", first.status)
	s.observe("refused", refused)
	s.observe("with_code", coded)
	s.observe("told_that_it_was_done", told)
	s.observe("same_request_again", again.status)
	return errors.Join(err, s.observeCount(ctx, "applied", conflictCount))
}
