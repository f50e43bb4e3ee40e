package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"
)

const maxBody = 64 << 10

// Simulator is the provider's side. Make one with [NewSimulator]; it is an [http.Handler] and safe for
// concurrent use.
type Simulator struct {
	mux *http.ServeMux

	mu      sync.Mutex
	rules   []Rule
	used    map[string]int // rule and key -> times it acted
	byKey   map[string]*account
	ledger  Ledger
	lastID  int
	release chan struct{}
}

// account is what is known under one idempotency key.
type account struct {
	request  ChargeRequest
	charge   *Charge
	declined bool
	reversed *Reversal
}

// NewSimulator returns a provider without customers.
func NewSimulator() *Simulator {
	s := &Simulator{
		mux: http.NewServeMux(), used: map[string]int{}, byKey: map[string]*account{}, release: make(chan struct{}),
		ledger: Ledger{ChargeRequests: map[string]int{}},
	}
	s.mux.HandleFunc("POST /charges", s.charge)
	s.mux.HandleFunc("POST /reversals/{key}", s.reverse)
	s.mux.HandleFunc("GET /charges/{key}", s.check)
	s.mux.HandleFunc("PUT /admin/rules", s.putRules)
	s.mux.HandleFunc("GET /admin/rules", s.getRules)
	s.mux.HandleFunc("GET /admin/ledger", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s.Ledger()) })
	return s
}

// ServeHTTP implements [http.Handler].
func (s *Simulator) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	s.mux.ServeHTTP(w, r)
}

// SetRules replaces the faults. Requests that wait for a fault now wait no longer.
func (s *Simulator) SetRules(rules ...Rule) error {
	for i, rule := range rules {
		switch rule.Fault {
		case FaultUnavailable, FaultDeclined, FaultSlow, FaultHang, FaultHangBefore:
		default:
			return fmt.Errorf("rules[%d]: unknown fault %q", i, rule.Fault)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules, s.used = slices.Clone(rules), map[string]int{}
	close(s.release)
	s.release = make(chan struct{})
	return nil
}

// Ledger returns a copy of what happened so far.
func (s *Simulator) Ledger() Ledger {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Ledger{
		Charges: append([]Charge{}, s.ledger.Charges...), Refunds: append([]Reversal{}, s.ledger.Refunds...),
		Checks: append([]string{}, s.ledger.Checks...), ChargeRequests: maps.Clone(s.ledger.ChargeRequests),
	}
}

func (s *Simulator) putRules(w http.ResponseWriter, r *http.Request) {
	var rules []Rule
	if err := json.NewDecoder(r.Body).Decode(&rules); err != nil {
		fail(w, http.StatusBadRequest, "bad_request", err)
		return
	}
	if err := s.SetRules(rules...); err != nil {
		fail(w, http.StatusBadRequest, "bad_request", err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Simulator) getRules(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	rules := append([]Rule{}, s.rules...)
	s.mu.Unlock()
	answer(w, http.StatusOK, rules)
}

func (s *Simulator) charge(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	var req ChargeRequest
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil || key == "" || req.AmountCents <= 0 {
		fail(w, http.StatusBadRequest, "bad_request", errors.New("an Idempotency-Key and a charge above 0 are needed"))
		return
	}
	rule, hold := s.begin(key, req)
	switch rule.Fault {
	case FaultUnavailable:
		w.Header().Set("Retry-After", "1")
		fail(w, http.StatusServiceUnavailable, "unavailable", errors.New("try again"))
	case FaultHangBefore:
		hold(r.Context(), rule.delay())
		fail(w, http.StatusServiceUnavailable, "unavailable", errors.New("try again"))
	case FaultSlow:
		// The work goes on when the client has hung up: that is what makes a timeout uncertain.
		hold(context.WithoutCancel(r.Context()), rule.delay())
		s.settle(w, key, req, false)
	case FaultHang:
		s.settle(discard{}, key, req, false)
		hold(r.Context(), rule.delay())
		fail(w, http.StatusServiceUnavailable, "unavailable", errors.New("try again"))
	case FaultDeclined:
		s.settle(w, key, req, true)
	default:
		s.settle(w, key, req, false)
	}
}

// begin counts the request and picks the rule that it meets. Hold waits until the client gives up, the time is
// over, or the rules are replaced.
func (s *Simulator) begin(key string, req ChargeRequest) (rule Rule, hold func(context.Context, time.Duration)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.ChargeRequests[key]++
	release := s.release
	hold = func(ctx context.Context, d time.Duration) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-release:
		}
	}
	for i, rule := range s.rules {
		use := fmt.Sprintf("%d %s", i, key)
		if rule.matches(key, req) && (rule.Times == 0 || s.used[use] < rule.Times) {
			s.used[use]++
			return rule, hold
		}
	}
	return Rule{}, hold
}

func (r Rule) matches(key string, req ChargeRequest) bool {
	return (r.Key == "" || r.Key == key) && (r.Card == "" || r.Card == req.Card) && (r.Tenant == "" || r.Tenant == req.Tenant)
}

// settle decides a charge, once for each key.
func (s *Simulator) settle(w http.ResponseWriter, key string, req ChargeRequest, decline bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.byKey[key]
	if !ok {
		known = &account{request: req}
		s.byKey[key] = known
	}
	switch {
	case known.reversed != nil:
		fail(w, http.StatusConflict, "reversed", errors.New("this key was reversed and is never charged again"))
	case known.request != req:
		fail(w, http.StatusUnprocessableEntity, "key_reused", errors.New("this key was used with another request"))
	case known.declined:
		fail(w, http.StatusPaymentRequired, "card_declined", errors.New("the card was declined"))
	case known.charge != nil:
		answer(w, http.StatusOK, known.charge)
	case decline || req.Card == CardDeclined:
		known.declined = true
		fail(w, http.StatusPaymentRequired, "card_declined", errors.New("the card was declined"))
	default:
		known.charge = &Charge{ID: s.nextID("ch"), Key: key, Tenant: req.Tenant, AmountCents: req.AmountCents, Currency: req.Currency}
		s.ledger.Charges = append(s.ledger.Charges, *known.charge)
		answer(w, http.StatusOK, known.charge)
	}
}

func (s *Simulator) reverse(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("key")
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.byKey[key]
	if !ok {
		known = &account{}
		s.byKey[key] = known
	}
	if known.reversed == nil {
		known.reversed = &Reversal{Key: key}
		if c := known.charge; c != nil {
			known.reversed.RefundID, known.reversed.ChargeID, known.reversed.AmountCents = s.nextID("re"), c.ID, c.AmountCents
			s.ledger.Refunds = append(s.ledger.Refunds, *known.reversed)
		}
	}
	answer(w, http.StatusOK, known.reversed)
}

func (s *Simulator) check(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("key")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.Checks = append(s.ledger.Checks, key)
	known, ok := s.byKey[key]
	switch {
	case ok && known.charge != nil:
		answer(w, http.StatusOK, known.charge)
	case ok && known.declined:
		fail(w, http.StatusPaymentRequired, "card_declined", errors.New("the card was declined"))
	default:
		fail(w, http.StatusNotFound, "not_found", errors.New("nothing is known of this key"))
	}
}

func (s *Simulator) nextID(kind string) string {
	s.lastID++
	return fmt.Sprintf("%s_%06d", kind, s.lastID)
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone: there is nobody to tell
}

func fail(w http.ResponseWriter, status int, code string, err error) {
	answer(w, status, map[string]string{"code": code, "message": err.Error()})
}

// discard is where an answer goes that is never sent.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}
