package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// Roles of processes that take payments over HTTP and ask for those whose outcome they do not know.
const (
	roleDesk       = "desk"
	roleMemoryDesk = "memory-desk"
)

// deskTask is such a process's.
type deskTask struct {
	Listen   string        `json:"listen"`
	Provider string        `json:"provider"`
	Slots    int           `json:"slots"`
	Limit    time.Duration `json:"limit"`
	Ask      bool          `json:"ask"` // for what is not known
}

// desk starts such a process and waits until it answers.
func (s *stage) desk(ctx context.Context, role string, task deskTask) (*process, error) {
	p, err := s.act(ctx, role, task)
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: time.Second}
	return p, eventually(ctx, 20*time.Second, "the payment service to listen", func(ctx context.Context) (bool, error) {
		if !p.running() {
			return false, errors.New(p.out.String())
		}
		conn, err := dialer.DialContext(ctx, "tcp", task.Listen)
		if err != nil {
			return false, err
		}
		return true, conn.Close()
	})
}

func deskProvider(o ActOptions) (deskTask, *provider.Client, error) {
	t, err := task[deskTask](o)
	if err != nil {
		return t, nil, err
	}
	client, err := provider.NewClient(provider.ClientOptions{URL: t.Provider, Timeout: time.Minute})
	return t, client, err
}

// actDesk is the shop's payment service.
func actDesk(ctx context.Context, o ActOptions) error {
	t, client, err := deskProvider(o)
	if err != nil {
		return err
	}
	pool, err := o.pool(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	books, err := shop.New(shop.Options{Pool: pool, Provider: client, Prefix: o.Schema, Schema: o.Schema, Logger: o.Logger})
	if err != nil {
		return err
	}
	limits := resilience.Settings{
		Deadline: 20 * time.Second, Timeout: t.Limit, Retry: resilience.Retry{Attempts: 1}, Breaker: resilience.Breaker{Failures: always},
		Bulkhead: resilience.Bulkhead{Active: t.Slots, Queue: 100},
	}
	desk, err := books.Desk(shop.DeskOptions{Client: client, Limits: &limits, Reconcile: payments.ReconcilerOptions{
		After: time.Nanosecond, Every: 100 * time.Millisecond, Wait: 200 * time.Millisecond, MaxWait: 200 * time.Millisecond, Parallel: t.Slots,
	}})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	desk.Routes(mux)
	server, err := httpserver.New(httpserver.Options{Handler: mux, Listen: t.Listen, Logger: o.Logger})
	if err != nil {
		return err
	}
	if !t.Ask {
		return server.Run(ctx)
	}
	return together(2, func(i int) error {
		if i == 0 {
			return server.Run(ctx)
		}
		return desk.Run(ctx)
	})
}

// memoryDesk keeps what it does not know in memory.
type memoryDesk struct {
	client *provider.Client
	limit  time.Duration
	slots  chan struct{}

	mu    sync.Mutex
	items []string
}

// actMemoryDesk is a payment service without books.
func actMemoryDesk(ctx context.Context, o ActOptions) error {
	t, client, err := deskProvider(o)
	if err != nil {
		return err
	}
	d := &memoryDesk{client: client, limit: t.Limit, slots: make(chan struct{}, t.Slots)}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/payments", httpserver.Handler(d.pay))
	mux.HandleFunc("GET /items", func(w http.ResponseWriter, _ *http.Request) {
		d.mu.Lock()
		defer d.mu.Unlock()
		_, _ = fmt.Fprint(w, len(d.items)) // the drill's own question
	})
	server, err := httpserver.New(httpserver.Options{Handler: mux, Listen: t.Listen, Logger: o.Logger})
	if err != nil {
		return err
	}
	return together(2, func(i int) error {
		if i == 0 {
			return server.Run(ctx)
		}
		for t.Ask && pause.For(ctx, 100*time.Millisecond) {
			d.ask(ctx)
		}
		return nil
	})
}

func (d *memoryDesk) pay(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		OrderID string `json:"orderId"`
		event.Payment
	}
	if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
		return err
	}
	d.slots <- struct{}{}
	defer func() { <-d.slots }()
	ctx, cancel := context.WithTimeout(r.Context(), d.limit)
	defer cancel()
	_, err := d.client.Charge(ctx, p.OrderID, provider.ChargeRequest{OrderID: p.OrderID, Tenant: tenant, AmountCents: p.AmountCents, Currency: p.Currency, Card: p.Card})
	if err != nil {
		d.mu.Lock()
		d.items = append(d.items, p.OrderID)
		d.mu.Unlock()
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// ask asks for everything that it remembers.
func (d *memoryDesk) ask(ctx context.Context) {
	d.mu.Lock()
	items := append([]string{}, d.items...)
	d.mu.Unlock()
	for _, id := range items {
		_, _ = d.client.Check(ctx, id) // what it says has nowhere to go
	}
}
