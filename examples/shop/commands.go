package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/examples/shop/notifications"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/sample"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
)

const usage = `usage: shop COMMAND [flags]

  migrate        create the services' schemas and put the sample's items and customers into them
  orders         lead orders through their saga, and recover those whose outcome is not known
  inventory      hold stock, by events and over HTTP: POST /v1/reservations, GET /v1/reservations/{order},
                 POST /v1/reservations/{order}/release
  payments       charge and pay back, by events and over HTTP: POST /v1/payments, GET /v1/payments/{order}; ask the
                 provider for what is not known
  notifications  tell customers how their orders ended
  all            run these four in one process
  api            take orders over HTTP: POST /v1/orders, GET /v1/orders/{id}, GET /v1/storefront
  catalog, customers
                 answer the api over HTTP
  provider       run the payment provider to break; it takes no real money
  mail           run the mail server to break; it sends nothing
  submit FILE    take orders from a file of JSON lines (- for standard input)
  cases          list the recovery cases that are not closed; reopen TENANT ORDER has one tried again that was left to a person
  clean          remove what is older than its retention; the services do it by themselves, once an hour
  erase TENANT   remove everything of a tenant, unless an order of it is still on its way
  account        compare all books; exits 1 when something is wrong
  sample         write the sample orders

Services over HTTP, and any other with -http, also answer /livez, /readyz and /metrics. shop COMMAND -h lists the flags.

Environment: SUREFOOT_DATABASE_URL, SUREFOOT_AMQP_URL (or without SUREFOOT_); with SUREFOOT_MANAGEMENT_URL the
consumers also check that no dead-letter path is lossy.
`

// errUsage is a command that was given the wrong way.
var errUsage = errors.New("wrong use; see shop help")

type environment struct {
	getenv         func(string) string
	stdin          io.Reader
	stdout, stderr io.Writer
}

func (e environment) url(name string) string {
	if url := e.getenv("SUREFOOT_" + name); url != "" {
		return url
	}
	return e.getenv(name)
}

// settings are the flags of all commands.
type settings struct {
	command                                 string
	prefix, schema, providerURL, listen     string
	http, catalogURL, customersURL          string
	inventoryURL, paymentsURL, mailURL      string
	hold, paymentLimit, paymentTimeout      time.Duration
	checkout, finishWithin, giveUp, recheck time.Duration
}

func (e environment) settings(command string, args []string) (settings, []string, error) {
	s := settings{command: command}
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	flags.SetOutput(e.stderr)
	flags.StringVar(&s.prefix, "prefix", "shop", "what the names of the services' schemas begin with")
	flags.StringVar(&s.schema, "schema", "surefoot", "Surefoot's schema")
	flags.StringVar(&s.providerURL, "provider", "http://127.0.0.1:8089", "URL of the payment provider")
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8089", "where the payment provider listens")
	flags.StringVar(&s.http, "http", "", "where the command listens (default of api, catalog, customers, inventory, payments, mail: 127.0.0.1:8090 to :8095)")
	flags.StringVar(&s.catalogURL, "catalog", "http://127.0.0.1:8091", "URL of the catalog")
	flags.StringVar(&s.customersURL, "customers", "http://127.0.0.1:8092", "URL of the customers service")
	flags.StringVar(&s.inventoryURL, "inventory", "http://127.0.0.1:8093", "URL of the inventory; all listens there")
	flags.StringVar(&s.paymentsURL, "payments", "http://127.0.0.1:8094", "URL of the payments; all listens there")
	flags.StringVar(&s.mailURL, "mail", "", "URL of the mail server (default none: mails are only noted)")
	flags.DurationVar(&s.checkout, "checkout", 10*time.Second, "the budget of an order with \"checkout\": \"sync\"")
	flags.DurationVar(&s.finishWithin, "finish-within", 10*time.Minute, "how old an order in recovery may be to go on; an older one is compensated")
	flags.DurationVar(&s.giveUp, "give-up", time.Hour, "how long a recovery case is tried before it is left to a person")
	flags.DurationVar(&s.recheck, "recheck", 10*time.Second, "when a payment that is not known is asked for again; it doubles up to 10 min")
	flags.DurationVar(&s.hold, "hold", 15*time.Minute, "how long stock is reserved")
	flags.DurationVar(&s.paymentLimit, "payment-limit", shop.DefaultPaymentLimit, "the limit of the watchdog's rule PAYMENT_TIMEOUT")
	flags.DurationVar(&s.paymentTimeout, "payment-timeout", 5*time.Second, "how long the payment provider may take to answer")
	if err := flags.Parse(args); err != nil {
		return s, nil, errUsage
	}
	return s, flags.Args(), nil
}

func run(ctx context.Context, args []string, env environment) error {
	if len(args) == 0 {
		fmt.Fprint(env.stderr, usage)
		return errUsage
	}
	s, rest, err := env.settings(args[0], args[1:])
	if err != nil {
		return err
	}
	if most := arguments[args[0]]; len(rest) > most {
		return fmt.Errorf("%w: %q is too much", errUsage, rest[most])
	}
	switch args[0] {
	case "help", "-h", "--help":
		_, err := fmt.Fprint(env.stdout, usage)
		return err
	case "sample":
		return sample.Write(env.stdout)
	case "provider":
		return serveProvider(ctx, s.listen, env.stderr)
	case "mail":
		return env.serveMail(ctx, s)
	case "all":
		return env.withShop(ctx, s, func(p *program) error { return p.all(ctx) })
	case "orders", "inventory", "payments", "notifications":
		return env.withShop(ctx, s, func(p *program) error { return p.role(ctx, args[0]) })
	case "api":
		return env.withShop(ctx, s, func(p *program) error { return p.serveAPI(ctx) })
	case "catalog":
		return env.withShop(ctx, s, func(p *program) error { return p.serve(ctx, "127.0.0.1:8091", p.shop.Catalog.Routes) })
	case "customers":
		return env.withShop(ctx, s, func(p *program) error { return p.serve(ctx, "127.0.0.1:8092", p.shop.Customers.Routes) })
	case "cases":
		return env.withShop(ctx, s, func(p *program) error { return p.cases(ctx) })
	case "reopen":
		return env.withShop(ctx, s, func(p *program) error { return p.reopen(ctx, rest) })
	case "clean":
		return env.withShop(ctx, s, func(p *program) error { return p.clean(ctx) })
	case "erase":
		return env.withShop(ctx, s, func(p *program) error { return p.erase(ctx, rest) })
	case "migrate":
		return env.withShop(ctx, s, func(p *program) error { return p.migrate(ctx) })
	case "account":
		return env.withShop(ctx, s, func(p *program) error { return p.account(ctx) })
	case "submit":
		return env.withShop(ctx, s, func(p *program) error { return p.submit(ctx, rest) })
	}
	return fmt.Errorf("%w: there is no command %q", errUsage, args[0])
}

// arguments are how many words a command takes beside its flags.
var arguments = map[string]int{"submit": 1, "erase": 1, "reopen": 2}

// program is a command with what it works on.
type program struct {
	environment
	settings
	shop    *shop.Shop
	client  *provider.Client
	mailer  *shop.Mailer // nil: mails are only noted
	logger  zerolog.Logger
	metrics *prometheus.Registry
	probes  *probes
}

func (e environment) withShop(ctx context.Context, s settings, do func(*program) error) error {
	config, err := pgxpool.ParseConfig(e.url("DATABASE_URL"))
	if err != nil || e.url("DATABASE_URL") == "" {
		return fmt.Errorf("%w: set SUREFOOT_DATABASE_URL to postgres://user:password@host/database", errUsage)
	}
	config.MaxConns = max(config.MaxConns, 40)
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	defer pool.Close()
	client, err := provider.NewClient(provider.ClientOptions{URL: s.providerURL, Timeout: s.paymentTimeout})
	if err != nil {
		return err
	}
	defer client.Close()
	p := &program{environment: e, settings: s, client: client, logger: zerolog.New(e.stderr).With().Timestamp().Logger(), metrics: newRegistry()}
	p.probes = newProbes(p.metrics)
	host, _ := os.Hostname() // only a name in connections
	o := shop.Options{
		Pool: pool, AMQPURL: e.url("AMQP_URL"), ManagementURL: e.url("MANAGEMENT_URL"), Provider: client,
		Prefix: s.prefix, Schema: s.schema, Hold: s.hold,
		Logger: p.logger, Metrics: p.metrics, Ready: p.probes.set, Host: host,
	}
	if s.mailURL != "" && (s.command == "all" || s.command == notifications.Name) {
		if p.mailer, err = shop.NewMailer(o, s.mailURL, nil); err != nil {
			return fmt.Errorf("%w: %w", errUsage, err)
		}
		defer p.mailer.Close()
		o.Mailer = p.mailer
	}
	if p.shop, err = shop.New(o); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	return do(p)
}

func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

func (p *program) consume(ctx context.Context, roles ...string) error {
	if err := p.shop.CheckTiming(p.paymentLimit); err != nil {
		p.logger.Warn().Err(err).Msg("times do not fit together")
	}
	return p.shop.Run(ctx, roles...)
}

func (p *program) migrate(ctx context.Context) error {
	if err := p.shop.Migrate(ctx); err != nil {
		return err
	}
	if err := p.shop.SeedCatalog(ctx, sample.Items(), sample.Customers()); err != nil {
		return err
	}
	return p.shop.Seed(ctx, sample.Stock())
}

func (p *program) submit(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%w: submit needs one file, or - for standard input", errUsage)
	}
	in := p.stdin
	if args[0] != "-" {
		file, err := os.Open(args[0])
		if err != nil {
			return fmt.Errorf("open orders: %w", err)
		}
		defer file.Close()
		in = file
	}
	created, known := 0, 0
	err := sample.Read(in, func(_ int, o orders.Order) error {
		submitted, err := p.shop.Submit(ctx, o)
		if submitted.Created && err == nil {
			created++
		} else if err == nil {
			known++
		}
		return err
	})
	fmt.Fprintf(p.stdout, "%d orders taken, %d known before\n", created, known)
	return err
}

func (p *program) account(ctx context.Context) error {
	account, err := p.shop.Account(ctx, p.client, sample.Stock())
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(p.stdout)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(account); err != nil {
		return fmt.Errorf("write account: %w", err)
	}
	if len(account.Violations) > 0 {
		return fmt.Errorf("%d things are wrong", len(account.Violations))
	}
	return nil
}

// serveProvider serves the simulator until ctx ends.
func serveProvider(ctx context.Context, listen string, log io.Writer) error {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen for payments: %w", err)
	}
	simulator := provider.NewSimulator()
	server := &http.Server{Handler: simulator, ReadHeaderTimeout: 5 * time.Second}
	fmt.Fprintf(log, "payment provider listens on http://%s\n", listener.Addr())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve payments: %w", err)
	case <-ctx.Done():
	}
	err = errors.Join(simulator.SetRules(), server.Close()) // what hangs is let go first
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}
