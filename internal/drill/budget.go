package drill

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

func budget() Drill {
	return Drill{
		Name: "budget", Section: SectionCalls,
		Proves: "one deadline for the whole operation: one layer retries, and neither attempts nor waits pass the deadline",
		Settings: []Setting{
			length("gateway", 2500*time.Millisecond, 500*time.Millisecond, 10*time.Second, "time of the whole operation (5s in earnest)"),
			length("orders", 1500*time.Millisecond, 300*time.Millisecond, 10*time.Second, "the orders service's own limit (3s)"),
			length("dependency", 600*time.Millisecond, 200*time.Millisecond, 10*time.Second, "time of a call to a dependency, attempts and waits together (2s)"),
			count("attempts", 3, 2, 5, "attempts of each layer (before), of the one that retries (after)"),
			length("answer", 150*time.Millisecond, 20*time.Millisecond, time.Second, "time in which a dependency fails"),
		},
		Arms: []Arm{
			{Name: Before, Does: "every layer retries, nobody knows of a deadline", play: func(ctx context.Context, s *stage) error { return layers(ctx, s, false) }},
			{Name: After, Does: "one layer retries, within what is left", play: func(ctx context.Context, s *stage) error { return layers(ctx, s, true) }},
		},
		checks: func(s Settings) []Check {
			n := s.Int("attempts")
			return append(
				expect(Before, "calls", n*n*n, "took", moreThan(s.Duration("gateway")), "within_budget", false),
				expect(After, "calls", between(2, n), "longest_call", atMost(s.Duration("dependency")+20*time.Millisecond), "took", atMost(s.Duration("gateway")), "within_budget", true, "attempts_with_budget_left", equalFigure("attempts_recorded"),
					"attempts_recorded", moreThan(2), "passed_the_deadline", 0, "began_with_too_little", 0, "left_shrinks", true, "status", atLeast(http.StatusInternalServerError))...)
		},
	}
}

// layers has a client call gateway, orders, and two dependencies in parallel: one fails, the other hangs.
func layers(ctx context.Context, s *stage, within bool) error {
	dependencies := map[string]*meter{"catalog": {}, "customers": {}}
	failing := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pause.For(r.Context(), s.set.Duration("answer"))
		w.WriteHeader(http.StatusBadGateway)
	})
	catalog, err := s.serve(ctx, dependencies["catalog"].wrap(failing))
	if err != nil {
		return err
	}
	customers, err := s.serve(ctx, dependencies["customers"].wrap(hang(time.Hour)))
	if err != nil {
		return err
	}
	var attempts []resilience.Attempt
	orders, err := s.ordersLayer(ctx, within, []string{catalog, customers}, func(made []resilience.Attempt) { attempts = append(attempts, made...) })
	if err != nil {
		return err
	}
	gateway, err := s.gatewayLayer(ctx, within, orders)
	if err != nil {
		return err
	}
	client, _, err := s.client("gateway", s.layer(within, false, s.set.Duration("gateway")))
	if err != nil {
		return err
	}
	if within {
		var cancel context.CancelFunc
		ctx, cancel = resilience.WithBudget(ctx, s.set.Duration("gateway"))
		defer cancel()
	}
	began := time.Now()
	r, err := newPost(ctx, gateway, "one-operation", struct{}{})
	if err != nil {
		return err
	}
	err = client.JSON(r, nil)
	took := time.Since(began)
	s.observe("took", took)
	s.observe("within_budget", took <= s.set.Duration("gateway"))
	s.observe("calls", dependencies["catalog"].calls())
	s.observe("calls_to_the_other", dependencies["customers"].calls())
	s.observe("status", statusOf(err))
	if within {
		s.observeAttempts(attempts)
	}
	return nil
}

func statusOf(err error) int {
	if answered, ok := errors.AsType[*httpclient.ResponseError](err); ok {
		return answered.Status
	}
	return resilience.CodeOf(err).Status()
}

// layer is how a layer calls the next one: before, each tries as often as it likes; after, only the one that retries.
func (s *stage) layer(within, retries bool, limit time.Duration) resilience.Settings {
	settings := resilience.Settings{
		Deadline: time.Minute, Timeout: 30 * time.Second, Breaker: resilience.Breaker{Failures: always},
		Retry: resilience.Retry{Attempts: s.set.Int("attempts"), Base: time.Millisecond, Max: time.Millisecond},
	}
	if within {
		settings.Deadline, settings.Timeout = limit, limit
		settings.Retry.Attempts, settings.Retry.Base, settings.Retry.Max = 1, 100*time.Millisecond, 200*time.Millisecond
	}
	if within && retries {
		settings.Retry.Attempts = s.set.Int("attempts")
	}
	return settings
}

func (s *stage) gatewayLayer(ctx context.Context, within bool, orders string) (string, error) {
	client, _, err := s.client("orders", s.layer(within, false, s.set.Duration("orders")))
	if err != nil {
		return "", err
	}
	return s.layerServer(ctx, within, s.set.Duration("gateway"), func(r *http.Request) error { return post(r.Context(), client, orders) })
}

// ordersLayer asks the dependencies in parallel, and is the layer that retries.
func (s *stage) ordersLayer(ctx context.Context, within bool, urls []string, made func([]resilience.Attempt)) (string, error) {
	clients := make([]*httpclient.Client, len(urls))
	for i, name := range []string{"catalog", "customers"} {
		settings := s.layer(within, true, s.set.Duration("dependency"))
		settings.Timeout = s.set.Duration("answer") * 3 / 2
		var err error
		if clients[i], _, err = s.client(name, settings); err != nil {
			return "", err
		}
	}
	return s.layerServer(ctx, within, s.set.Duration("orders"), func(r *http.Request) error {
		err := together(len(urls), func(i int) error { return post(r.Context(), clients[i], urls[i]) }) //nolint:contextcheck // the request's
		kept, _ := resilience.BudgetOf(r.Context()).Attempts()
		made(kept)
		return err
	})
}

// layerServer is a service with a limit of its own (after), or a careless one.
func (s *stage) layerServer(ctx context.Context, within bool, limit time.Duration, work func(r *http.Request) error) (string, error) {
	handler := httpserver.Handler(func(w http.ResponseWriter, r *http.Request) error {
		if err := work(r); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	})
	if !within {
		return s.serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del(resilience.HeaderTimeout) // nobody looks at it
			handler.ServeHTTP(failsPlainly{w}, r)
		}))
	}
	server, err := httpserver.New(httpserver.Options{Handler: handler, Timeout: limit, Logger: s.logger})
	if err != nil {
		return "", err
	}
	return s.serve(ctx, server)
}

// failsPlainly answers every failure as 502 without a Retry-After: what a service without codes would say.
type failsPlainly struct{ http.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w failsPlainly) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		w.Header().Del("Retry-After")
		status = http.StatusBadGateway
	}
	w.ResponseWriter.WriteHeader(status)
}

func post(ctx context.Context, client *httpclient.Client, url string) error {
	r, err := newPost(ctx, url, "one-operation", struct{}{})
	if err != nil {
		return err
	}
	return client.JSON(r, nil)
}

// observeAttempts checks the record of the layer that retried.
func (s *stage) observeAttempts(attempts []resilience.Attempt) {
	with, late, short, shrinks := 0, 0, 0, true
	last, first, longestCall := map[string]time.Duration{}, map[string]time.Time{}, time.Duration(0)
	var rows [][]string
	slices.SortStableFunc(attempts, func(a, b resilience.Attempt) int { return a.Start.Compare(b.Start) })
	for _, a := range attempts {
		if a.Left > 0 {
			with++
		}
		if a.Took > a.Left+20*time.Millisecond {
			late++
		}
		if a.Left < resilience.MinAttempt {
			short++
		}
		if before, seen := last[a.Dependency]; seen && a.Left >= before {
			shrinks = false
		}
		last[a.Dependency] = a.Left
		if first[a.Dependency].IsZero() {
			first[a.Dependency] = a.Start
		}
		longestCall = max(longestCall, a.Start.Add(a.Took).Sub(first[a.Dependency]))
		rows = append(rows, []string{a.Dependency, strconv.Itoa(a.Number), string(a.Class), durationText(a.Took), durationText(a.Left)})
	}
	s.observe("longest_call", longestCall)
	s.observe("attempts_recorded", len(attempts))
	s.observe("attempts_with_budget_left", with)
	s.observe("passed_the_deadline", late)
	s.observe("began_with_too_little", short)
	s.observe("left_shrinks", shrinks)
	s.table("attempts of the layer that retries, within "+durationText(s.set.Duration("dependency")),
		[]string{"DEPENDENCY", "ATTEMPT", "CLASS", "TOOK", "LEFT"}, rows)
}
