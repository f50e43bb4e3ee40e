package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/mail"
	"github.com/surefoot-mq/surefoot/examples/shop/notifications"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// parts run together until one fails or ctx ends.
type parts []func(ctx context.Context) error

func (all parts) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, part := range all {
		group.Go(func() error { return part(ctx) })
	}
	return group.Wait()
}

// role is one of the services that consume, with what belongs to it.
func (p *program) role(ctx context.Context, name string) error {
	all := parts{func(ctx context.Context) error { return p.consume(ctx, name) }, p.shop.RunClean}
	listen := p.http
	routes := func(*http.ServeMux) {}
	switch name {
	case inventory.Name:
		listen, routes = cmp.Or(p.http, "127.0.0.1:8093"), p.shop.InventoryRoutes
	case payments.Name:
		desk, err := p.desk()
		if err != nil {
			return err
		}
		listen, routes, all = cmp.Or(p.http, "127.0.0.1:8094"), desk.Routes, append(all, desk.Run)
	case orders.Name:
		recover, done, err := p.recovery()
		if err != nil {
			return err
		}
		defer done()
		all = append(all, recover...)
	case notifications.Name:
		all = append(all, p.mails()...)
	}
	if listen != "" {
		all = append(all, func(ctx context.Context) error { return p.serve(ctx, listen, routes) })
	}
	return all.run(ctx)
}

// all are the four services in one process; inventory and payments listen where the others look for them.
func (p *program) all(ctx context.Context) error {
	desk, err := p.desk()
	if err != nil {
		return err
	}
	recover, done, err := p.recovery()
	if err != nil {
		return err
	}
	defer done()
	all := append(parts{func(ctx context.Context) error { return p.consume(ctx) }, p.shop.RunClean, desk.Run}, recover...)
	all = append(all, p.mails()...)
	for at, routes := range map[string]func(*http.ServeMux){p.inventoryURL: p.shop.InventoryRoutes, p.paymentsURL: desk.Routes} {
		u, err := url.Parse(at)
		if err != nil || u.Host == "" {
			return fmt.Errorf("%w: -inventory and -payments must be URLs", errUsage)
		}
		all = append(all, func(ctx context.Context) error { return p.listen(ctx, u.Host, routes) })
	}
	return all.run(ctx)
}

func (p *program) desk() (*shop.Desk, error) {
	return p.shop.Desk(shop.DeskOptions{Client: p.client, Reconcile: payments.ReconcilerOptions{Wait: p.recheck}})
}

// recovery finishes orders that a checkout over HTTP has left; done lets its connections go.
func (p *program) recovery() (all parts, done func(), err error) {
	clients, err := p.shop.Clients(shop.ClientsOptions{Inventory: p.inventoryURL, Payments: p.paymentsURL})
	if err != nil {
		return nil, nil, err
	}
	r, err := p.shop.Recovery(clients, orders.RecoveryOptions{FinishWithin: p.finishWithin, GiveUpAfter: p.giveUp, Grace: p.checkout + p.checkout})
	if err != nil {
		return nil, nil, err
	}
	return parts{clients.Run, r.Run}, clients.Close, nil
}

func (p *program) mails() parts {
	if p.mailer == nil {
		return nil
	}
	return parts{p.mailer.Run}
}

func (p *program) serveAPI(ctx context.Context) error {
	clients, err := p.shop.Clients(shop.ClientsOptions{Catalog: p.catalogURL, Customers: p.customersURL, Inventory: p.inventoryURL, Payments: p.paymentsURL})
	if err != nil {
		return err
	}
	defer clients.Close()
	api, err := p.shop.API(shop.APIOptions{Clients: clients, Checkout: p.checkout})
	if err != nil {
		return err
	}
	return parts{api.Run, clients.Run, func(ctx context.Context) error { return p.serve(ctx, "127.0.0.1:8090", api.Routes) }}.run(ctx)
}

// serve answers requests at -http, or where the command listens without it.
func (p *program) serve(ctx context.Context, listen string, routes func(*http.ServeMux)) error {
	return p.listen(ctx, cmp.Or(p.http, listen), routes)
}

func (p *program) listen(ctx context.Context, listen string, routes func(*http.ServeMux)) error {
	mux := http.NewServeMux()
	routes(mux)
	server, err := httpserver.New(httpserver.Options{Handler: mux, Listen: listen, Probes: p.probes, Logger: p.logger, Metrics: p.metrics})
	if err != nil {
		return err
	}
	return server.Run(ctx)
}

// serveMail needs no database.
func (e environment) serveMail(ctx context.Context, s settings) error {
	registry := newRegistry()
	p := &program{environment: e, settings: s, logger: zerolog.New(e.stderr).With().Timestamp().Logger(), metrics: registry, probes: newProbes(registry)}
	return p.serve(ctx, "127.0.0.1:8095", mail.NewServer().Routes)
}

func (p *program) cases(ctx context.Context) error {
	list, err := p.shop.Cases(ctx)
	if err != nil {
		return err
	}
	return p.print(append([]orders.Case{}, list...))
}

func (p *program) reopen(ctx context.Context, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("%w: reopen needs TENANT and ORDER", errUsage)
	}
	done, err := p.shop.Reopen(ctx, args[0], args[1])
	if err == nil && !done {
		return fmt.Errorf("order %q of tenant %q has no case that was left to a person; see shop cases", args[1], args[0])
	}
	return err
}

func (p *program) clean(ctx context.Context) error {
	deleted, err := p.shop.Clean(ctx)
	if err != nil {
		return err
	}
	return p.print(deleted)
}

func (p *program) erase(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%w: erase needs a TENANT", errUsage)
	}
	return p.shop.Erase(ctx, args[0])
}

func (p *program) print(value any) error {
	encoder := json.NewEncoder(p.stdout)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write answer: %w", err)
	}
	return nil
}
