package drill

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// refill is the time in which a limiter's tokens come back.
const refill = time.Second

func rateLimit() Drill {
	return Drill{
		Name: "rate-limit", Section: SectionCalls,
		Proves: "a token bucket takes what it has tokens for; the rest is told when to come again and does nothing",
		Settings: []Setting{
			count("tokens", 5, 1, 100, "tokens of the bucket, and how many come back in a second"),
			count("burst", 30, 2, 500, "requests at once"),
		},
		Arms: []Arm{
			{Name: Before, Does: "no limiter", play: func(ctx context.Context, s *stage) error { return burst(ctx, s, false) }},
			{Name: After, Does: "token bucket, no queue", play: func(ctx context.Context, s *stage) error { return burst(ctx, s, true) }},
		},
		checks: func(s Settings) []Check {
			tokens, all := s.Int("tokens"), s.Int("burst")
			return append(
				expect(Before, "accepted", all, "rows", all),
				expect(After, "accepted", between(min(tokens, all), tokens+3), "limited", atLeast(all-tokens-3),
					"limited_with_retry_after", equalFigure("limited"), "rows", equalFigure("accepted"), "answers", all)...)
		},
	}
}

// limited is a server that takes operations, each a row, at a rate.
type limited struct {
	url   string
	mu    sync.Mutex
	early int                  // attempts before the time that their key was told
	until map[string]time.Time // by key: not to come again before
}

const (
	limitedTable pg.SQL = `CREATE TABLE @schema@.drill_operations (id bigint GENERATED ALWAYS AS IDENTITY, key text NOT NULL)`
	limitedRow   pg.SQL = `INSERT INTO @schema@.drill_operations (key) VALUES ($1)`
	limitedCount pg.SQL = `SELECT count(*) FROM @schema@.drill_operations`
)

func newLimited(ctx context.Context, s *stage, on bool) (*limited, *meter, error) {
	pool, err := s.database(ctx)
	if err != nil {
		return nil, nil, err
	}
	if err := s.exec(ctx, limitedTable); err != nil {
		return nil, nil, err
	}
	var h http.Handler = httpserver.Handler(func(w http.ResponseWriter, r *http.Request) error {
		if _, err := pool.Exec(r.Context(), limitedRow.In(s.schema), r.Header.Get(httpclient.HeaderKey)); err != nil {
			return err
		}
		w.WriteHeader(http.StatusOK)
		return nil
	})
	if on {
		limiter, err := httpserver.NewLimiter(httpserver.Rate{Requests: s.set.Int("tokens"), Per: refill, Client: httpserver.Everyone})
		if err != nil {
			return nil, nil, err
		}
		h = limiter.Wrap(h)
	}
	l, m := &limited{until: map[string]time.Time{}}, &meter{}
	l.url, err = s.serve(ctx, m.wrap(l.watch(h)))
	return l, m, err
}

// watch notes which attempts come earlier than their key was told.
func (l *limited) watch(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key, now := r.Header.Get(httpclient.HeaderKey), time.Now()
		l.mu.Lock()
		if now.Before(l.until[key]) {
			l.early++
		}
		l.mu.Unlock()
		h.ServeHTTP(w, r)
		if seconds, err := strconv.Atoi(w.Header().Get("Retry-After")); err == nil {
			l.mu.Lock()
			l.until[key] = now.Add(time.Duration(seconds) * time.Second)
			l.mu.Unlock()
		}
	})
}

// burst sends all requests at once.
func burst(ctx context.Context, s *stage, on bool) error {
	server, _, err := newLimited(ctx, s, on)
	if err != nil {
		return err
	}
	client := s.naive()
	var mu sync.Mutex
	statuses, hinted := map[int]int{}, 0
	err = together(s.set.Int("burst"), func(int) error {
		a, err := client.post(ctx, server.url, uuid.NewString())
		mu.Lock()
		defer mu.Unlock()
		statuses[a.status]++
		if a.status == http.StatusTooManyRequests && a.header.Get("Retry-After") != "" {
			hinted++
		}
		return err
	})
	if err != nil {
		return err
	}
	s.observe("accepted", statuses[http.StatusOK])
	s.observe("limited", statuses[http.StatusTooManyRequests])
	s.observe("limited_with_retry_after", hinted)
	s.observe("answers", statuses[http.StatusOK]+statuses[http.StatusTooManyRequests])
	return s.observeCount(ctx, "rows", limitedCount)
}
