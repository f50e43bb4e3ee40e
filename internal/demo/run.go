package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/sample"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/relay"
	"github.com/surefoot-mq/surefoot/topology"
	"github.com/surefoot-mq/surefoot/watchdog"
)

// Times are short, and fit together as in earnest: retries end (5 times 2 s in the handler, 4 times 1 s between) before
// the watchdog cancels, and that is long before a reservation expires.
const (
	retryDelay     = time.Second // what a 503 of the provider asks for
	handlerTimeout = 2 * time.Second
	chargeTimeout  = 700 * time.Millisecond
	paymentLimit   = 15 * time.Second
	watchInterval  = 500 * time.Millisecond
)

// run is one run of a demonstration with what it works on.
type run struct {
	*Demo
	url   string // of the vhost
	spec  topology.Spec
	stock map[string]int

	pool, shopPool, relayPool *pgxpool.Pool
	conn                      *rabbit.Conn
	witness                   *witness
	letters                   *deadletter.DeadLetters
	metrics                   *prometheus.Registry
	shop                      *shop.Shop
	simulator                 *provider.Simulator
	server                    *http.Server
	client                    *provider.Client
	stopProvider              func()

	// Of the play: what was submitted, by id, and what is known of it.
	orders    map[string]orders.Order
	lines     int
	outage    map[string]bool
	malformed string
	redriven  map[string]int // by queue
}

// spec is the shop's topology with one short retry tier.
func spec() topology.Spec {
	s := shop.Topology()
	for i := range s.Queues {
		q := &s.Queues[i]
		q.Retry, q.HandlerTimeout, q.Prefetch, q.Concurrency = []time.Duration{retryDelay}, handlerTimeout, 20, 4
	}
	return s
}

// build makes the parts; none runs yet, but for the payment provider.
func (r *run) build(ctx context.Context) (err error) {
	r.orders, r.outage, r.redriven, r.stock = map[string]orders.Order{}, map[string]bool{}, map[string]int{}, sample.Stock()
	r.metrics = prometheus.NewRegistry()
	if r.shopPool, err = r.Demo.pool(ctx, "demo shop", 40); err != nil {
		return err
	}
	if r.relayPool, err = r.Demo.pool(ctx, "demo relay", 10); err != nil {
		return err
	}
	if err := r.serveProvider(ctx); err != nil {
		return err
	}
	r.shop, err = shop.New(shop.Options{
		Pool: r.shopPool, AMQPURL: r.url, ManagementURL: r.o.ManagementURL, TLS: r.o.TLS, Provider: r.client, Prefix: r.o.Prefix, Schema: r.o.Prefix, Topology: r.spec,
		Host: r.o.Host, Version: r.o.Version, Logger: r.o.Logger, Metrics: r.metrics,
	})
	if err != nil {
		return err
	}
	if err := r.shop.CheckTiming(paymentLimit); err != nil {
		return err
	}
	r.letters, err = deadletter.New(deadletter.Options{
		Pool: r.pool, Schema: r.o.Prefix, AMQPURL: r.url, ManagementURL: r.o.ManagementURL, TLS: r.o.TLS,
		Logger: r.o.Logger, Host: r.o.Host, Version: r.o.Version,
	})
	return err
}

// serveProvider starts the payment provider on a free port.
func (r *run) serveProvider(ctx context.Context) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for payments: %w", err)
	}
	r.simulator = provider.NewSimulator()
	r.server = &http.Server{Handler: r.simulator, ReadHeaderTimeout: 5 * time.Second}
	r.client, err = provider.NewClient(provider.ClientOptions{URL: "http://" + listener.Addr().String(), Timeout: chargeTimeout})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = r.server.Serve(listener) // ends with Close; before, every charge would fail and the account show it
	}()
	r.stopProvider = func() {
		_ = r.simulator.SetRules() // what hangs is let go first
		r.client.Close()
		_ = r.server.Close()
		<-served
	}
	return nil
}

// close ends everything that build and prepare have opened, also when ctx has ended.
func (r *run) close(ctx context.Context) {
	if r.witness != nil {
		r.witness.close(context.WithoutCancel(ctx))
	}
	if r.stopProvider != nil {
		r.stopProvider()
	}
	if r.conn != nil {
		_ = r.conn.Close() // nothing is under way on it
	}
	for _, pool := range []*pgxpool.Pool{r.shopPool, r.relayPool} {
		if pool != nil {
			pool.Close()
		}
	}
}

// playAll runs relay and services while the play goes on. Early is why the play ended before its end, when an
// account is worth making all the same.
func (r *run) playAll(ctx context.Context) (early, err error) {
	publisher, err := relay.New(relay.Options{
		Pool: r.relayPool, Schema: r.o.Prefix, AMQPURL: r.url, TLS: r.o.TLS, Name: r.o.Host, Version: r.o.Version, Logger: r.o.Logger, Registerer: r.metrics,
	})
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	group, running := errgroup.WithContext(running)
	group.Go(func() error { return publisher.Run(running) })
	group.Go(func() error { return r.shop.Run(running) })
	limited, cancel := context.WithTimeoutCause(running, r.o.Timeout, errTimeout)
	defer cancel()
	early = r.play(limited, func(w *watchdog.Watchdog) { group.Go(func() error { return w.Run(running) }) })
	stop()
	if err := errors.Join(group.Wait(), ctx.Err()); err != nil {
		return nil, err
	}
	return early, nil
}
