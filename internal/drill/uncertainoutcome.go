package drill

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

func uncertainOutcome() Drill {
	return Drill{
		Name: "uncertain-outcome", Section: SectionOutcomes,
		Proves: "a timeout says nothing about the effect; only a retry with the same id, while its receipt is kept, is safe",
		Settings: []Setting{
			length("patience", 250*time.Millisecond, 50*time.Millisecond, 2*time.Second, "how long the client waits"),
		},
		Arms: []Arm{
			{Name: Before, Does: "no receipts are kept", play: func(ctx context.Context, s *stage) error { return histories(ctx, s, false) }},
			{Name: After, Does: "receipts in the transaction of the effect", play: func(ctx context.Context, s *stage) error { return histories(ctx, s, true) }},
		},
		checks: func(Settings) []Check {
			return append(
				expect(Before, "client_timed_out", 7, "counter_when_the_wait_ended", []int{0, 0, 0, 1, 1, 1, 1}, "final_counter", []int{1, 2, 2, 1, 2, 2, 2}),
				expect(After, "client_timed_out", 7, "counter_when_the_wait_ended", []int{0, 0, 0, 1, 1, 1, 1}, "final_counter", []int{1, 2, 1, 1, 2, 1, 2},
					"before_same_id_applied_by", "second handler", "before_same_id_suppressed", "first handler",
					"forgotten_at_the_end_changes", 0, "later_retry_repeats", 1)...)
		},
	}
}

// history is one course of events.
type history struct {
	name   string
	after  bool   // the server pauses after the effect, else before it
	retry  string // none, new-id, same-id
	forget bool   // the receipt is forgotten before the retry
}

var allHistories = []history{
	{"before/no-retry", false, "none", false},
	{"before/new-id", false, "new-id", false},
	{"before/same-id", false, "same-id", false},
	{"after/no-retry", true, "none", false},
	{"after/new-id", true, "new-id", false},
	{"after/same-id", true, "same-id", false},
	{"after/same-id-forgotten", true, "same-id", true},
}

const (
	counterTable pg.SQL = `CREATE TABLE @schema@.drill_counters (history text NOT NULL, handler integer NOT NULL)`
	counterAdd   pg.SQL = `INSERT INTO @schema@.drill_counters VALUES ($1, $2)`
	counterGet   pg.SQL = `SELECT count(*) FROM @schema@.drill_counters WHERE history = $1`
	counterBy    pg.SQL = `SELECT coalesce(min(handler), 0) FROM @schema@.drill_counters WHERE history = $1`
	receiptsGone pg.SQL = `DELETE FROM @schema@.idempotency WHERE caller = $1`
)

// gatedServer adds one to a counter for each request, and holds the first one of each history before or after that.
type gatedServer struct {
	stage *stage
	store *idempotency.Store // nil: no receipts

	mu     sync.Mutex
	gates  map[string]*serverGate
	ids    map[string]string   // of the first request
	events map[string][]string // as the observer saw them
}

// serverGate is one history's.
type serverGate struct {
	after    bool
	requests int
	arrived  chan struct{} // the first request is held
	open     chan struct{}
	over     sync.WaitGroup
}

func (g *gatedServer) note(history, what string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.events[history] = append(g.events[history], what)
}

func (g *gatedServer) gate(name string, after bool) *serverGate {
	g.mu.Lock()
	defer g.mu.Unlock()
	gate := &serverGate{after: after, arrived: make(chan struct{}), open: make(chan struct{})}
	g.gates[name] = gate
	return gate
}

// headerHistory tells the histories apart; it also names the caller, so that receipts can be forgotten one by one.
const headerHistory = "X-History"

// ServeHTTP goes on when the client has left: that is what makes a timeout uncertain.
func (g *gatedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.Header.Get(headerHistory)
	g.mu.Lock()
	gate := g.gates[name]
	gate.requests++
	number := gate.requests
	gate.over.Add(1)
	g.mu.Unlock()
	defer gate.over.Done()
	r = r.WithContext(context.WithoutCancel(r.Context()))
	who := "handler " + strconv.Itoa(number)
	g.note(name, who+" began")
	if number == 1 && !gate.after {
		close(gate.arrived)
		<-gate.open
	}
	g.apply(name, number, w, r)
	if number == 1 && gate.after {
		close(gate.arrived)
		<-gate.open
	}
	g.note(name, who+" ended")
}

// apply has the effect, unless there is a receipt.
func (g *gatedServer) apply(name string, number int, w http.ResponseWriter, r *http.Request) {
	applied := false
	effect := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, counterAdd.In(g.stage.schema), name, number)
		applied = err == nil
		return err
	}
	if g.store == nil {
		if err := pgx.BeginFunc(r.Context(), g.stage.pool, func(tx pgx.Tx) error { return effect(r.Context(), tx) }); err != nil { //nolint:contextcheck // the request's
			w.WriteHeader(http.StatusInternalServerError)
		}
	} else {
		answer := nowhere{http.Header{}}                                                                   // read by the observer alone: nobody waits for the first one any more
		g.store.Handle(func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) { //nolint:contextcheck // the request's
			return idempotency.JSON(http.StatusOK, struct{}{}), effect(ctx, tx)
		}).ServeHTTP(answer, r)
	}
	if applied {
		g.note(name, "handler "+strconv.Itoa(number)+" applied the effect")
	} else {
		g.note(name, "handler "+strconv.Itoa(number)+" was suppressed")
	}
}

// histories plays all seven, and then forgets everything and sends once more.
func histories(ctx context.Context, s *stage, receipts bool) error {
	pool, err := s.database(ctx)
	if err != nil {
		return err
	}
	if err := s.exec(ctx, counterTable); err != nil {
		return err
	}
	g := &gatedServer{stage: s, gates: map[string]*serverGate{}, ids: map[string]string{}, events: map[string][]string{}}
	if receipts {
		g.store, err = idempotency.New(idempotency.Options{
			Pool: pool, Schema: s.schema, Logger: s.logger, Caller: func(r *http.Request) (string, error) { return r.Header.Get(headerHistory), nil },
		})
		if err != nil {
			return err
		}
	}
	url, err := s.serve(ctx, g)
	if err != nil {
		return err
	}
	timedOut, whenEnded, final := 0, []int{}, []int{}
	var rows, observed [][]string
	for _, h := range allHistories {
		learned, at, end, err := g.play(ctx, url, h)
		if err != nil {
			return err
		}
		if learned == "timeout" {
			timedOut++
		}
		whenEnded, final = append(whenEnded, at), append(final, end)
		rows = append(rows, []string{h.name, learned, strconv.Itoa(at), strconv.Itoa(end)})
		for i, what := range g.events[h.name] {
			observed = append(observed, []string{h.name, strconv.Itoa(i + 1), what})
		}
	}
	s.observe("client_timed_out", timedOut)
	s.observe("counter_when_the_wait_ended", whenEnded)
	s.observe("final_counter", final)
	s.table("what the client learned, and what only the observer saw", []string{"HISTORY", "CLIENT LEARNED", "COUNTER WHEN THE WAIT ENDED", "FINAL COUNTER"}, rows)
	s.table("events", []string{"HISTORY", "STEP", "OBSERVED"}, observed)
	if !receipts {
		return nil
	}
	by, err := s.count(ctx, counterBy, "before/same-id")
	if err != nil {
		return err
	}
	s.observe("before_same_id_applied_by", map[int]string{1: "first handler", 2: "second handler"}[by])
	s.observe("before_same_id_suppressed", map[int]string{1: "second handler", 2: "first handler"}[by])
	return g.eighth(ctx, url)
}

// play lets the client's wait end, then the retry come, then the first handler go on.
func (g *gatedServer) play(ctx context.Context, url string, h history) (learned string, whenEnded, final int, err error) {
	s := g.stage
	gate, id := g.gate(h.name, h.after), uuid.NewString()
	g.ids[h.name] = id
	learned = g.send(ctx, url, h.name, id)
	select {
	case <-gate.arrived:
	case <-ctx.Done():
		return "", 0, 0, context.Cause(ctx)
	}
	if whenEnded, err = s.count(ctx, counterGet, h.name); err != nil {
		return "", 0, 0, err
	}
	if h.forget {
		if err := s.forget(ctx, h.name); err != nil {
			return "", 0, 0, err
		}
		g.note(h.name, "the receipt is forgotten")
	}
	switch h.retry {
	case "new-id":
		g.send(ctx, url, h.name, uuid.NewString())
	case "same-id":
		g.send(ctx, url, h.name, id)
	}
	close(gate.open)
	gate.over.Wait()
	final, err = s.count(ctx, counterGet, h.name)
	return learned, whenEnded, final, err
}

// send makes one attempt and says what the client learned.
func (g *gatedServer) send(ctx context.Context, url, history, id string) string {
	client, _, err := g.stage.client("counter", resilience.Settings{Timeout: g.stage.set.Duration("patience"), Retry: resilience.Retry{Attempts: 1}})
	if err != nil {
		return err.Error()
	}
	r, err := newPost(ctx, url, id, struct{}{})
	if err != nil {
		return err.Error()
	}
	r.Header.Set(headerHistory, history)
	g.mu.Lock()
	first := len(g.events[history]) == 0
	g.mu.Unlock()
	g.note(history, "client sent "+map[bool]string{true: "the first request", false: "a retry"}[first])
	err = client.JSON(r, nil)
	learned := "done"
	switch {
	case errors.Is(err, resilience.ErrTimeout):
		learned = "timeout"
	case err != nil:
		learned = string(resilience.CodeOf(err))
	}
	g.note(history, "client learned: "+learned)
	return learned
}

// forget takes a history's receipts away, as their retention would.
func (s *stage) forget(ctx context.Context, history string) error {
	return s.exec(ctx, receiptsGone, history)
}

// eighth forgets the receipt after all attempts, which changes nothing, and sends once more, which repeats the effect.
func (g *gatedServer) eighth(ctx context.Context, url string) error {
	const name = "after/same-id"
	s := g.stage
	before, err := s.count(ctx, counterGet, name)
	if err != nil {
		return err
	}
	if err := s.forget(ctx, name); err != nil {
		return err
	}
	forgotten, err := s.count(ctx, counterGet, name)
	if err != nil {
		return err
	}
	g.send(ctx, url, name, g.ids[name])
	later, err := s.count(ctx, counterGet, name)
	s.observe("forgotten_at_the_end_changes", forgotten-before)
	s.observe("later_retry_repeats", later-forgotten)
	return err
}
