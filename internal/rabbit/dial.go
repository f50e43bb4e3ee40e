package rabbit

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// Dial connects, within DialTimeout and ctx. The connection's life does not depend on ctx afterwards; the caller closes it.
func Dial(ctx context.Context, opts Options) (*Conn, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	uri, err := parseURL(opts.URL)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, opts.DialTimeout)
	defer cancel()
	conn, w, err := open(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("rabbit: connect to %s as %q: %w", address(uri), uri.Username, err)
	}
	return newConn(opts, uri, conn, w), nil
}

func newConn(opts Options, uri amqp.URI, conn *amqp.Connection, w wire) *Conn {
	text, _ := conn.Properties["version"].(string)
	c := &Conn{
		opts: opts, amqp: conn, wire: w, user: uri.Username, address: address(uri), version: ParseVersion(text),
		block: blockState{changed: make(chan struct{})}, done: make(chan struct{}),
	}
	closes := conn.NotifyClose(make(chan *amqp.Error, 1))
	blocks := conn.NotifyBlocked(make(chan amqp.Blocking, 16))
	go func() {
		defer telemetry.FatalOnPanic(opts.Logger)
		c.watch(closes, blocks)
	}()
	return c
}

// open makes a fresh configuration for every dial, for some versions of the library wipe the password of a reused one. The library
// takes no context: when ctx ends first, the socket is dropped under it.
func open(ctx context.Context, opts Options) (*amqp.Connection, wire, error) {
	url, err := withHeartbeat(opts.URL, opts.Heartbeat)
	if err != nil {
		return nil, nil, err
	}
	var w wire
	stop := func() bool { return true }
	cfg := config(opts)
	cfg.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := connect(ctx, opts, network, addr)
		if err == nil {
			w = conn
			stop = context.AfterFunc(ctx, conn.abort)
		}
		return conn, err
	}
	conn, err := amqp.DialConfig(url, cfg)
	if !stop() {
		return nil, nil, fmt.Errorf("handshake not finished in time: %w", ctx.Err())
	}
	if err != nil && w != nil {
		w.abort()
	}
	return conn, w, err
}

func config(opts Options) amqp.Config {
	properties := amqp.NewConnectionProperties()
	properties["product"] = "surefoot"
	properties["version"] = opts.Version
	properties.SetClientConnectionName(opts.connectionName())
	cfg := amqp.Config{Heartbeat: opts.Heartbeat, Properties: properties}
	if opts.TLS != nil {
		cfg.TLSClientConfig = opts.TLS.Clone() // the library writes the server name into it
		if cfg.TLSClientConfig.MinVersion == 0 {
			cfg.TLSClientConfig.MinVersion = tls.VersionTLS12
		}
	}
	return cfg
}

// netWire is a socket with the bounds of this package.
type netWire interface {
	net.Conn
	wire
}

// connect opens the socket and wraps it.
func connect(ctx context.Context, opts Options, network, addr string) (netWire, error) {
	socket, err := (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	bounded := newDeadlineConn(socket, opts.WriteTimeout)
	if opts.Coalesce {
		return newCoalescer(bounded, opts.Logger), nil
	}
	return bounded, nil
}
