package idempotency_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

func TestTheSameRequestAgainHasNoSecondEffect(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := p.store(t)
	server := serve(t, s.Handle(func(ctx context.Context, tx pgx.Tx, r *http.Request) (idempotency.Answer, error) {
		a, err := p.apply(ctx, tx)
		if err != nil {
			return a, err
		}
		a.Header.Set("Location", "/v1/orders/1")
		return a, outbox.Enqueue(outbox.WithSchema(ctx, p.Schema), tx, message.Message{Type: "order.created"})
	}))
	first := ask(t.Context(), server, "k", "body")
	require.Equal(t, http.StatusCreated, first.status, first.body)
	require.False(t, first.replayed())
	require.Equal(t, "86400", first.header.Get(idempotency.HeaderRetention))
	for _, key := range []string{"k", `"k"`} {
		again := ask(t.Context(), server, key, "body")
		require.Equal(t, first.status, again.status)
		require.Equal(t, first.body, again.body)
		require.Equal(t, "/v1/orders/1", again.header.Get("Location"))
		require.Equal(t, "application/json", again.header.Get("Content-Type"))
		require.True(t, again.replayed())
		require.Contains(t, []string{"86400", "86399", "86398"}, again.header.Get(idempotency.HeaderRetention))
		require.NotEqual(t, first.header.Get(httpserver.HeaderRequestID), again.header.Get(httpserver.HeaderRequestID))
	}
	require.Equal(t, 1, p.effects(t, "k"))
	var requestID string
	require.NoError(t, p.Pool.QueryRow(t.Context(), `SELECT request_id FROM `+p.Schema+`.outbox`).Scan(&requestID))
	require.Equal(t, first.header.Get(httpserver.HeaderRequestID), requestID, "one event, with the id of the request that had the effect")
}

func TestAnotherRequestUnderTheKeyIsRefused(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	server := serve(t, p.store(t).Handle(p.handler))
	require.Equal(t, 201, ask(t.Context(), server, "k", "body").status)
	ask(t.Context(), server, "k", "another").isProblem(t, 422, resilience.CodeIdempotencyKeyReused)
	for _, path := range []string{"/other", "/?a=1"} {
		askAs(t.Context(), server.Client(), server.URL+path, "alpine", "k", "body").isProblem(t, 422, resilience.CodeIdempotencyKeyReused)
	}
	require.Equal(t, 1, p.effects(t, "k"))
	require.Equal(t, 201, askAs(t.Context(), server.Client(), server.URL, "bazaar", "k", "another").status, "keys are the caller's own")
	require.Equal(t, 2, p.effects(t, "k"))
}

func TestARequestNeedsOneKeyAndACaller(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	refusal := &httpserver.Problem{Code: "UNAUTHENTICATED", Status: 401}
	server := serve(t, p.store(t, func(o *idempotency.Options) {
		o.Caller = func(r *http.Request) (string, error) {
			if r.Header.Get("Tenant") == "nobody" {
				return "", refusal
			}
			return r.Header.Get("Tenant"), nil
		}
	}).Handle(p.handler))
	for _, key := range []string{"", "a b", strings.Repeat("x", 256), `""`, `"a`, `"a"b`, `"a\n"`, "ü", `"` + strings.Repeat("x", 256) + `"`} {
		ask(t.Context(), server, key, "body").isProblem(t, 400, resilience.CodeIdempotencyKeyMissing)
	}
	twice, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, http.NoBody)
	require.NoError(t, err)
	twice.Header[idempotency.HeaderKey] = []string{"a", "b"}
	twice.Header.Set("Tenant", "alpine")
	response, err := server.Client().Do(twice)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, 400, response.StatusCode)
	askAs(t.Context(), server.Client(), server.URL, "nobody", "k", "body").isProblem(t, 401, "UNAUTHENTICATED")
	askAs(t.Context(), server.Client(), server.URL, "", "k", "body").isProblem(t, 500, resilience.CodeInternal)
	askAs(t.Context(), server.Client(), server.URL, strings.Repeat("x", 256), "k", "body").isProblem(t, 500, resilience.CodeInternal)
	require.Zero(t, p.effects(t, "k"))
}

func TestAnErrorRemembersNothingAndAnAnswerEverything(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var runs atomic.Int32
	server := serve(t, p.store(t).Handle(func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
		a, err := p.apply(ctx, tx)
		switch runs.Add(1) {
		case 1:
			return a, errBroken
		case 2:
			return a, &httpserver.Problem{Code: "OUT_OF_STOCK", Status: 409}
		}
		a.Status = 502
		return a, err
	}))
	ask(t.Context(), server, "k", "").isProblem(t, 500, resilience.CodeInternal)
	ask(t.Context(), server, "k", "").isProblem(t, 409, "OUT_OF_STOCK")
	require.Zero(t, p.effects(t, "k"))
	require.Equal(t, 502, ask(t.Context(), server, "k", "").status, "what a handler answers is final")
	again := ask(t.Context(), server, "k", "")
	require.Equal(t, 502, again.status)
	require.True(t, again.replayed())
	require.EqualValues(t, 3, runs.Load())
	require.Equal(t, 1, p.effects(t, "k"))
}

// However requests come together, with failures among them, a key has one effect and one answer.
func TestConcurrentRequestsHaveOneEffectAndOneAnswer(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	run := 0
	rapid.Check(t, func(r *rapid.T) {
		run++
		callers, keys := rapid.IntRange(2, 12).Draw(r, "callers"), rapid.IntRange(1, 3).Draw(r, "keys")
		failures := rapid.IntRange(0, 3).Draw(r, "failures")
		var failed atomic.Int32
		handler := func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
			a, err := p.apply(ctx, tx)
			if err == nil && int(failed.Add(1)) <= failures {
				return a, errBroken
			}
			return a, err
		}
		// Two stores are two processes: they meet only in the database.
		processes := []http.Handler{p.store(t).Handle(handler), p.store(t).Handle(handler)}
		answers := together(t.Context(), processes, callers, keys, run)
		for key, got := range answers {
			checkOne(r, key, got, p.effects(t, key))
		}
	})
}

// together sends every caller's request for every key at once.
func together(ctx context.Context, processes []http.Handler, callers, keys, run int) map[string][]answer {
	answers := map[string][]answer{}
	var mu sync.Mutex
	var all sync.WaitGroup
	for caller := range callers {
		for k := range keys {
			key := "run" + string(rune('a'+k)) + "-" + time.Duration(run).String()
			all.Go(func() {
				a := direct(ctx, processes[caller%len(processes)], key)
				mu.Lock()
				defer mu.Unlock()
				answers[key] = append(answers[key], a)
			})
		}
	}
	all.Wait()
	return answers
}

func checkOne(r *rapid.T, key string, got []answer, effects int) {
	first, fresh := "", 0
	for _, a := range got {
		if a.status != 201 {
			if a.status != 500 {
				r.Fatalf("%s: %d %s", key, a.status, a.body)
			}
			continue
		}
		if first == "" {
			first = a.body
		}
		if a.body != first {
			r.Fatalf("%s: two answers: %s and %s", key, first, a.body)
		}
		if !a.replayed() {
			fresh++
		}
	}
	want := min(fresh, 1)
	if effects != want || fresh > 1 || first != "" && fresh != 1 {
		r.Fatalf("%s: %d effects, %d first answers", key, effects, fresh)
	}
}

// A handler that is slow is waited for in another process too, as long as Wait says.
func TestOthersWaitForTheFirst(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	slow := serve(t, p.store(t).Handle(func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
		close(inside)
		<-leave
		return p.apply(ctx, tx)
	}))
	impatient := func(o *idempotency.Options) { o.Wait = 50 * time.Millisecond }
	other, hasty := serve(t, p.store(t).Handle(p.handler)), serve(t, p.store(t, impatient).Handle(p.handler))
	answers := make(chan answer, 3)
	go func() { answers <- ask(t.Context(), slow, "k", "") }()
	<-inside
	pending := ask(t.Context(), hasty, "k", "")
	pending.isProblem(t, 409, resilience.CodeIdempotencyPending)
	require.Equal(t, "1", pending.header.Get("Retry-After"))
	go func() { answers <- ask(t.Context(), slow, "k", "") }()
	go func() { answers <- ask(t.Context(), other, "k", "") }()
	testkit.Eventually(t, 10*time.Second, "the other process to wait for the row", func() bool { return waiting(t, p) == 1 })
	close(leave)
	replayed := 0
	for range 3 {
		a := <-answers
		require.Equal(t, 201, a.status, a.body)
		if a.replayed() {
			replayed++
		}
	}
	require.Equal(t, 2, replayed)
	require.Equal(t, 1, p.effects(t, "k"))
}

// waiting counts transactions that wait for a row of the table.
func waiting(t *testing.T, p place) (n int) {
	t.Helper()
	require.NoError(t, p.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '.idempotency%' AND pid <> pg_backend_pid()`, p.Schema).Scan(&n))
	return n
}

// Tries of one key must not take the connections that other keys need.
func TestManyTriesOfOneKeyHoldOneConnection(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	inside, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	s := p.store(t).Handle(func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
		if k, _ := idempotency.KeyFrom(ctx); k.Key == "slow" {
			once.Do(func() { close(inside) })
			<-leave
		}
		return p.apply(ctx, tx)
	})
	var all sync.WaitGroup
	release := sync.OnceFunc(func() { close(leave) })
	defer release()
	for range 50 {
		all.Go(func() { direct(t.Context(), s, "slow") })
	}
	<-inside
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.Equal(t, 201, direct(soon, s, "quick").status)
	require.EqualValues(t, 1, p.Pool.Stat().AcquiredConns())
	release()
	all.Wait()
	require.Equal(t, 1, p.effects(t, "slow"))
}

// A client that gives up takes its own request along, and nobody else's.
func TestAFirstThatGivesUpLeavesItToTheNext(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	inside := make(chan struct{}, 2)
	s := p.store(t).Handle(func(ctx context.Context, tx pgx.Tx, r *http.Request) (idempotency.Answer, error) {
		inside <- struct{}{}
		if r.Header.Get("First") != "" {
			<-ctx.Done()
			return idempotency.Answer{}, ctx.Err()
		}
		return p.apply(ctx, tx)
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answers := make(chan answer, 2)
	go func() { answers <- direct(ctx, s, "k", "First", "1") }()
	<-inside
	go func() { answers <- direct(t.Context(), s, "k") }()
	cancel()
	statuses := []int{(<-answers).status, (<-answers).status}
	require.Contains(t, statuses, 201)
	require.Equal(t, 1, p.effects(t, "k"))
}

// The database chose the transaction to fail: it runs again at once, with the body.
func TestADeadlockRunsTheHandlerAgain(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var runs atomic.Int32
	server := serve(t, p.store(t).Handle(func(ctx context.Context, tx pgx.Tx, r *http.Request) (idempotency.Answer, error) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "body" {
			return idempotency.Answer{}, errBroken
		}
		if runs.Add(1) < 3 {
			_, err := tx.Exec(ctx, `DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '40P01'; END $$`)
			return idempotency.Answer{}, err
		}
		return p.apply(ctx, tx)
	}))
	a := ask(t.Context(), server, "k", "body")
	require.Equal(t, 201, a.status, a.body)
	require.EqualValues(t, 3, runs.Load())
	runs.Store(-10)
	ask(t.Context(), server, "k2", "body").isProblem(t, 503, resilience.CodeDependencyUnavailable)
	require.EqualValues(t, -7, runs.Load(), "three times in all")
}

// Transactions that see only what was committed before they began find a key that was committed meanwhile.
func TestStricterIsolation(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		strict := func(o *idempotency.Options) { o.Isolation = level }
		inside, leave := make(chan struct{}), make(chan struct{})
		slow := p.store(t, strict).Handle(func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
			var got string
			if err := tx.QueryRow(ctx, `SHOW transaction_isolation`).Scan(&got); err != nil || got != string(level) {
				return idempotency.Answer{}, errBroken
			}
			close(inside)
			<-leave
			return p.apply(ctx, tx)
		})
		key, answers := strings.ReplaceAll(string(level), " ", ""), make(chan answer, 2)
		go func() { answers <- direct(t.Context(), slow, key) }()
		<-inside
		second := p.store(t, strict).Handle(p.handler)
		go func() { answers <- direct(t.Context(), second, key) }()
		testkit.Eventually(t, 10*time.Second, "the second to wait", func() bool { return waiting(t, p) == 1 })
		close(leave)
		require.Equal(t, 201, (<-answers).status)
		require.Equal(t, 201, (<-answers).status)
		require.Equal(t, 1, p.effects(t, key))
	}
}

func TestWhatCannotBeAnsweredAgainIsRefused(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for name, change := range map[string]func(*idempotency.Answer){
		"size":      func(a *idempotency.Answer) { a.Body = make([]byte, 11) },
		"status":    func(a *idempotency.Answer) { a.Status = 199 },
		"cookie":    func(a *idempotency.Answer) { a.Header = http.Header{"set-cookie": {"a"}} },
		"encoding":  func(a *idempotency.Answer) { a.Header = http.Header{"X": {"\xff"}} },
		"headers":   func(a *idempotency.Answer) { a.Header = http.Header{"X": {strings.Repeat("x", 9<<10)}} },
		"two-wants": func(a *idempotency.Answer) { a.Pending, a.Forget = true, true },
	} {
		s := p.store(t, func(o *idempotency.Options) { o.MaxAnswer = 10 })
		server := serve(t, s.Handle(func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
			_, err := p.apply(ctx, tx)
			a := idempotency.Answer{Body: []byte("0123456789")}
			change(&a)
			return a, err
		}))
		ask(t.Context(), server, name, "").isProblem(t, 500, resilience.CodeInternal)
		require.Zero(t, p.effects(t, name))
	}
}

func TestTheTransactionIsTheStores(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var kept pgx.Tx
	for _, c := range []struct {
		name    string
		misuse  func(ctx context.Context, tx pgx.Tx)
		status  int
		effects int
		log     string
	}{
		{"pgx commit", func(ctx context.Context, tx pgx.Tx) { _ = tx.Commit(ctx) }, 201, 1, ""},
		{"deferred rollback", func(ctx context.Context, tx pgx.Tx) { _ = tx.Rollback(ctx) }, 201, 1, ""},
		{"kept", func(_ context.Context, tx pgx.Tx) { kept = tx }, 201, 1, ""},
		{"rollback", func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Exec(ctx, "rollback") }, 500, 0, "the handler ended the transaction"},
		{"rollback and chain", func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Exec(ctx, "rollback and chain") }, 500, 0, "the handler ended the transaction"},
		{"commit and chain", func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Exec(ctx, "commit and chain") }, 500, 1, "the handler ended the transaction"},
		{"swallowed", func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Exec(ctx, "select 1/0") }, 500, 0, "although one of its statements had failed"},
		{"busy", func(ctx context.Context, tx pgx.Tx) { _, _ = tx.Query(ctx, "select 1") }, 500, 0, "while it still read"}, //nolint:sqlclosecheck // that is the fault
	} {
		key := strings.ReplaceAll(c.name, " ", "-")
		h := p.store(t).Handle(func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
			a, err := p.apply(ctx, tx)
			c.misuse(ctx, tx)
			return a, err
		})
		var log bytes.Buffer
		logging, err := httpserver.New(httpserver.Options{Handler: h, Logger: zerolog.New(&log)})
		require.NoError(t, err)
		server := httptest.NewServer(logging)
		t.Cleanup(server.Close)
		a := ask(t.Context(), server, key, "")
		require.Equal(t, c.status, a.status, "%s: %s", c.name, a.body)
		require.Contains(t, log.String(), c.log)
		require.Equal(t, c.effects, p.effects(t, key), c.name)
		if c.name == "commit and chain" { // what became of it is not known to anybody
			ask(t.Context(), server, key, "").isProblem(t, 409, resilience.CodeIdempotencyPending)
		}
	}
	_, err := kept.Exec(t.Context(), "select 1")
	require.ErrorIs(t, err, pgx.ErrTxClosed, "the connection is somebody else's now")
}

func TestAHandlerThatPanicsLeavesTheKeyFree(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var runs atomic.Int32
	server := serve(t, p.store(t).Handle(func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
		a, err := p.apply(ctx, tx)
		if runs.Add(1) == 1 {
			panic("x")
		}
		return a, err
	}))
	ask(t.Context(), server, "k", "").isProblem(t, 500, resilience.CodeInternal)
	require.Equal(t, 201, ask(t.Context(), server, "k", "").status)
	require.Equal(t, 1, p.effects(t, "k"))
}

// What a request needs from elsewhere is asked for once, and not at all by one that is remembered.
func TestPrepareRunsOnlyForWhatIsNotRemembered(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	var asked atomic.Int32
	away := true
	server := serve(t, p.store(t).HandlePrepared(func(_ context.Context, r *http.Request) (idempotency.Handler, error) {
		asked.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil || away {
			return nil, resilience.Unavailable(errBroken)
		}
		if p.Pool.Stat().AcquiredConns() != 0 {
			return nil, errBroken // a connection would be held for as long as this takes
		}
		return func(ctx context.Context, tx pgx.Tx, r *http.Request) (idempotency.Answer, error) {
			again, err := io.ReadAll(r.Body)
			if err != nil || string(again) != string(body) {
				return idempotency.Answer{}, errBroken
			}
			return p.apply(ctx, tx)
		}, nil
	}))
	ask(t.Context(), server, "k", "body").isProblem(t, 503, resilience.CodeDependencyUnavailable)
	away = false
	first := ask(t.Context(), server, "k", "body")
	require.Equal(t, 201, first.status, first.body)
	away = true
	again := ask(t.Context(), server, "k", "body")
	require.Equal(t, first.body, again.body)
	require.True(t, again.replayed())
	ask(t.Context(), server, "k", "another").isProblem(t, 422, resilience.CodeIdempotencyKeyReused)
	require.EqualValues(t, 2, asked.Load())
	require.Equal(t, 1, p.effects(t, "k"))
}

func TestABodyOverTheLimitClaimsNoKey(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	server := serve(t, p.store(t, func(o *idempotency.Options) { o.MaxBody = 10 }).Handle(p.handler))
	ask(t.Context(), server, "k", "0123456789X").isProblem(t, 413, resilience.CodeRequestTooLarge)
	require.Equal(t, 201, ask(t.Context(), server, "k", "0123456789").status)
}

// trips counts how often the database is asked.
type trips struct{ batches, queries atomic.Int32 }

func (c *trips) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	c.batches.Add(1)
	return ctx
}
func (c *trips) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (c *trips) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (c *trips) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.queries.Add(1)
	return ctx
}
func (c *trips) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// The claim travels with BEGIN, the answer with COMMIT: a transaction costs as many round trips as without a key.
func TestAKeyCostsNoRoundTrip(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	config, err := pgxpool.ParseConfig(p.URL)
	require.NoError(t, err)
	counted := new(trips)
	config.ConnConfig.Tracer = counted
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	s := p.store(t, func(o *idempotency.Options) { o.Pool = pool }).Handle(p.handler)
	require.Equal(t, 201, direct(t.Context(), s, "k").status)
	require.EqualValues(t, 2, counted.batches.Load())
	require.EqualValues(t, 1, counted.queries.Load(), "the handler's own")
}

func TestOptionsThatAreWrongAreRefusedTogether(t *testing.T) {
	t.Parallel()
	_, err := idempotency.New(idempotency.Options{Schema: "A b", Retention: 1, Wait: 1, MaxBody: -1, MaxAnswer: -1})
	for _, fault := range []string{"schema", "Pool", "Caller", "Retention", "Wait", "MaxBody", "MaxAnswer"} {
		require.ErrorContains(t, err, fault)
	}
}
