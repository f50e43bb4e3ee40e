package rabbit

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
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
	ctx, cancel := context.WithTimeout(ctx, opts.DialTimeout)
	defer cancel()
	hosts := perHost(opts.URL)
	rand.Shuffle(len(hosts), func(i, j int) { hosts[i], hosts[j] = hosts[j], hosts[i] })
	var failures []error
	for i, one := range hosts {
		opts.URL = one
		conn, err := dialHost(ctx, opts, len(hosts)-i)
		if err == nil {
			return conn, nil
		}
		failures = append(failures, err)
		if code := Code(err); code == amqp.AccessRefused || code == amqp.NotAllowed {
			break // the user or the vhost, which its peers do not know either
		}
	}
	return nil, errors.Join(failures...)
}

// dialHost connects to the URL's one host, within its share of what is left of ctx's time.
func dialHost(ctx context.Context, opts Options, left int) (*Conn, error) {
	uri, err := parseURL(opts.URL)
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok && left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
		defer cancel()
	}
	conn, w, err := open(ctx, opts, uri)
	if err != nil {
		return nil, fmt.Errorf("rabbit: connect to %s as %q: %w", address(uri), uri.Username, err)
	}
	return newConn(opts, uri, conn, w), nil
}

func newConn(opts Options, uri amqp.URI, conn *amqp.Connection, w *coalescer) *Conn {
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
func open(ctx context.Context, opts Options, uri amqp.URI) (*amqp.Connection, *coalescer, error) {
	url, err := libraryURL(opts.URL, opts.Heartbeat)
	if err != nil {
		return nil, nil, err
	}
	var w *coalescer
	stop := func() bool { return true }
	cfg := config(opts)
	cfg.Dial = func(network, addr string) (net.Conn, error) {
		conn, err := connect(ctx, opts, uri, network, addr)
		if err != nil {
			return nil, err
		}
		w = conn
		stop = context.AfterFunc(ctx, conn.abort)
		return conn, nil
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
	return amqp.Config{Heartbeat: opts.Heartbeat, Properties: properties}
}

// connect opens the socket and wraps it. TLS is ours, for the frames are read and written between it and the library.
func connect(ctx context.Context, opts Options, uri amqp.URI, network, addr string) (*coalescer, error) {
	socket, err := (&net.Dialer{KeepAlive: 15 * time.Second}).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	bounded := &deadlineConn{Conn: socket, socket: socket, timeout: opts.WriteTimeout}
	if uri.Scheme == "amqps" {
		if bounded.Conn, err = secure(ctx, socket, opts, uri); err != nil {
			return nil, errors.Join(err, socket.Close())
		}
	}
	return newCoalescer(bounded, opts.Logger), nil
}

// secure does the TLS handshake.
func secure(ctx context.Context, socket net.Conn, opts Options, uri amqp.URI) (net.Conn, error) {
	cfg, err := tlsConfig(opts, uri)
	if err != nil {
		return nil, err
	}
	client := tls.Client(socket, cfg)
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	return client, nil
}

// tlsConfig is the given one, or what the URL's parameters say.
func tlsConfig(opts Options, uri amqp.URI) (*tls.Config, error) {
	cfg := &tls.Config{ServerName: uri.ServerName, MinVersion: tls.VersionTLS12}
	switch {
	case opts.TLS != nil:
		cfg = opts.TLS.Clone()
		cfg.MinVersion = max(cfg.MinVersion, tls.VersionTLS12)
	default:
		if err := fromFiles(cfg, uri); err != nil {
			return nil, err
		}
	}
	cfg.ServerName = cmp.Or(cfg.ServerName, uri.Host)
	return cfg, nil
}

// fromFiles reads the files that the URL names.
func fromFiles(cfg *tls.Config, uri amqp.URI) error {
	if uri.CACertFile != "" {
		text, err := os.ReadFile(uri.CACertFile)
		if err != nil {
			return fmt.Errorf("read the authorities of the URL's cacertfile: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(text) {
			return fmt.Errorf("the URL's cacertfile %s holds no certificate in PEM form", uri.CACertFile)
		}
	}
	if uri.CertFile == "" || uri.KeyFile == "" {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(uri.CertFile, uri.KeyFile)
	if err != nil {
		return fmt.Errorf("read the URL's certfile and keyfile: %w", err)
	}
	cfg.Certificates = []tls.Certificate{pair}
	return nil
}
