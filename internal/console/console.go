package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/access"
	"github.com/surefoot-mq/surefoot/internal/listener"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
	"github.com/surefoot-mq/surefoot/reconcile"
	"github.com/surefoot-mq/surefoot/topology"
	"github.com/surefoot-mq/surefoot/watchdog"
)

// DefaultListen is where `surefoot console` listens unless it is told otherwise.
const DefaultListen = "127.0.0.1:9465"

// Options of a console.
type Options struct {
	// Listen is host:port; port 0 takes any free one. Other hosts than loopback addresses and localhost need a login and its PublicURL, and Files or
	// trusted proxies. Default: DefaultListen.
	Listen string
	// Pool of the database. Required. The database may be away.
	Pool *pgxpool.Pool
	// Schema that holds Surefoot's tables. Default: "surefoot".
	Schema string
	// AMQPURL of the broker, password included. Required. The broker may be away.
	AMQPURL string
	// ManagementURL of the broker's management plugin; without credentials it takes those of AMQPURL. Default: port 15672 of its host.
	ManagementURL string
	// Access says who comes and may do what. Without a login everybody who reaches the console is its administrator. Its Nobody, Secure, ProxyOnly
	// and Logger are set here.
	Access access.Options
	// Files are the listener's certificate and, if browsers are to show one, too, the authorities of theirs. Default: none, no TLS.
	Files tlsfiles.Files
	// Mask are names of JSON fields and headers, with * for any text, whose values are shown to nobody who does not reveal them. Default: none.
	Mask []string
	// Topology is what is shown. Default: no queues.
	Topology topology.Spec
	// Sagas are what the watchdog watches. Default: nil, none.
	Sagas *watchdog.Watchdog
	// Reconciler knows which rows are in doubt. It is asked and not run. Default: nil, none.
	Reconciler *reconcile.Reconciler
	// TraceLink is the URL of a trace in the tracing backend, {id} stands for its id. Default: none, ids are shown.
	TraceLink string
	// Who acts, for the audit, when there is no login; the address of the browser is added. Default: "console@" and Host.
	Who string
	// Interval between samples, and between updates of open pages. Default: 2 s.
	Interval time.Duration
	// Logger of what goes wrong; requests are not logged. Default: none.
	Logger zerolog.Logger
	// Host and Version are part of the connections' names. Default: "unknown" and "dev".
	Host, Version string
	// Ready is told nil once pages are served. Default: nobody is told.
	Ready func(reason error)
	// Listening is told the address once pages are served. Default: nobody is told.
	Listening func(addr string)
}

// Console serves the pages. Make it with New.
type Console struct {
	opts       Options
	letters    *deadletter.DeadLetters
	management *rabbit.Management
	queues     []topology.Queue
	pages      *pages
	known      known
	history    *history
	ages       ages
	gate       *access.Gate
	public     string // the host of PublicURL
	masks      masks
	doneKey    doneKey
	hub        hub
	looks      *places // for looks into queues
	streams    *places // for open pages that are told of news
	requests   *places // for requests
	logins     *places // and for those of whoever is nobody yet
	runs       driven
}

// New checks the options. It does no I/O.
func New(o Options) (*Console, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	c := &Console{
		opts: o, queues: o.Topology.WithDefaults().Queues,
		looks:    newPlaces(maxLooks, maxLooksEach, "other pages look into queues right now; try again", "your other pages look into queues right now; try again"),
		streams:  newPlaces(maxStreams, maxStreamsEach, "too many open pages", "you have too many open pages: close some"),
		requests: newPlaces(maxRequests, maxRequestsEach, "too many requests at a time", "you make too many requests at a time"),
		logins:   newPlaces(maxLogins, maxLoginsEach, "too many logins at a time", "you make too many logins at a time"),
	}
	queues := make([]deadletter.Queue, len(c.queues))
	for i, q := range c.queues {
		queues[i] = deadletter.Queue{Name: q.Name, Owner: q.Owner, Runbook: q.Runbook}
	}
	var err error
	c.letters, err = deadletter.New(deadletter.Options{
		Pool: o.Pool, Schema: o.Schema, AMQPURL: o.AMQPURL, ManagementURL: o.ManagementURL, Queues: queues,
		Logger: o.Logger, Host: o.Host, Version: o.Version,
	})
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	c.management, err = rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: o.AMQPURL, URL: o.ManagementURL})
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	if c.gate, err = access.New(o.Access); err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	if u, wrong := url.Parse(o.Access.PublicURL); wrong == nil {
		c.public = u.Host
	}
	if c.masks, err = newMasks(o.Mask); err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	c.history, c.doneKey = &history{}, newDoneKey()
	if c.pages, err = newPages(c); err != nil {
		return nil, err
	}
	return c, nil
}

func (o Options) withDefaults() Options {
	o.Listen = cmp.Or(o.Listen, DefaultListen)
	o.Schema = cmp.Or(o.Schema, pg.DefaultSchema)
	o.Interval = cmp.Or(o.Interval, 2*time.Second)
	o.Host = cmp.Or(o.Host, "unknown")
	o.Version = cmp.Or(o.Version, "dev")
	o.Who = cmp.Or(o.Who, "console@"+o.Host)
	a := &o.Access
	a.Nobody, a.Logger = o.Who, o.Logger
	a.Secure = o.Files.Cert != "" || strings.HasPrefix(a.PublicURL, "https://")
	a.ProxyOnly = o.Files.Cert == "" && !local(o.Listen)
	if o.Ready == nil {
		o.Ready = func(error) {}
	}
	if o.Listening == nil {
		o.Listening = func(string) {}
	}
	return o
}

func (o Options) validate() error {
	switch {
	case o.Pool == nil:
		return errors.New("console: Pool is missing")
	case o.AMQPURL == "":
		return errors.New("console: AMQPURL is missing")
	case o.Interval < 100*time.Millisecond:
		return errors.New("console: Interval must be at least 100ms")
	}
	if err := pg.CheckSchema(o.Schema); err != nil {
		return fmt.Errorf("console: %w", err)
	}
	return o.checkListen()
}

// ErrListen says that the console would be reachable from elsewhere, by anybody or unencrypted.
var ErrListen = errors.New("the console cannot listen there")

// checkListen makes sure that whoever comes from elsewhere has to log in, unseen by others.
func (o Options) checkListen() error {
	host, port, err := net.SplitHostPort(o.Listen)
	switch {
	case err != nil || port == "":
		return fmt.Errorf("%w: %q is not host:port, such as %s", ErrListen, o.Listen, DefaultListen)
	case loopback(host):
		return nil
	case o.Access.UsersFile == "" && o.Access.Header.User == "" && o.Access.OIDC.Issuer == "":
		return fmt.Errorf("%w: %q is reached by others, and there is no login: set one under console.login, or use %s, and from elsewhere a tunnel: ssh -L 9465:%s, kubectl port-forward",
			ErrListen, host, DefaultListen, DefaultListen)
	case o.Files.Cert == "" && len(o.Access.Proxies) == 0:
		return fmt.Errorf("%w: %q is reached by others, and what they send would be in the clear: set console.cert_file and console.key_file, or console.trusted_proxies to a proxy that speaks TLS", ErrListen, host)
	case o.Access.PublicURL == "":
		return fmt.Errorf("%w: beyond loopback it answers to one name only: set console.public_url, such as https://surefoot.example.org", ErrListen)
	}
	return nil
}

// local says whether host:port is reached from this machine alone.
func local(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	return err == nil && loopback(host)
}

// loopback takes the name localhost, which browsers resolve to this machine whatever the network says, and addresses; no other name, for
// names can be turned.
func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Zone() == "" && addr.IsLoopback()
}

// Run serves until ctx ends, and returns nil then. Database and broker may be away at any time. Redrives that were started here go
// on elsewhere: any replica of `surefoot run` takes them up, or whoever resumes them.
func (c *Console) Run(ctx context.Context) error {
	opened, err := c.listen(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var working sync.WaitGroup
	c.runs.open(ctx)
	defer c.runs.close()
	defer working.Wait()
	defer cancel()
	c.ask(ctx, &working)
	return c.serve(ctx, opened)
}

// listen makes sure that an address is what its name promised.
func (c *Console) listen(ctx context.Context) (net.Listener, error) {
	opened, err := listener.Listen(ctx, listener.Options{
		Address: c.opts.Listen, Name: "console", Files: c.opts.Files, Connections: maxConnections, PerHost: maxConnectionsPerHost, Many: c.gate.Trusted,
		Logger: c.opts.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	if addr, ok := opened.Addr().(*net.TCPAddr); local(c.opts.Listen) && (!ok || !addr.IP.IsLoopback()) {
		return nil, errors.Join(fmt.Errorf("%w: %s is no loopback address", ErrListen, opened.Addr()), opened.Close())
	}
	return opened, nil
}
