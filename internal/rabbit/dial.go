package rabbit

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
)

// Dial connects, within DialTimeout and ctx. The connection's life does not depend on ctx afterwards; the caller closes it.
func Dial(ctx context.Context, opts Options) (*Conn, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, opts.DialTimeout)
	defer cancel()
	var err error
	if opts.URL, err = resolve(opts.URL); err != nil {
		return nil, err
	}
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
		err = cmp.Or(w.refusal(), err)
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
	bounded := &deadlineConn{Conn: &plain{Conn: socket}, socket: socket, timeout: opts.WriteTimeout}
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
	to := &explained{Conn: client, files: filesOf(uri), host: uri.Host, over: make(chan struct{})}
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, to.files.Explain(err, uri.Host)
	}
	return to, nil
}

// tlsConfig is the given one, or what the URL's parameters say.
func tlsConfig(opts Options, uri amqp.URI) (*tls.Config, error) {
	cfg := opts.TLS.Clone()
	if cfg == nil {
		var err error
		if cfg, err = filesOf(uri).Client(); err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
	}
	cfg.MinVersion = max(cfg.MinVersion, tls.VersionTLS12)
	cfg.ServerName = cmp.Or(cfg.ServerName, uri.Host)
	return cfg, nil
}

// filesOf are the files that the URL names. They are read for each connection.
func filesOf(uri amqp.URI) tlsfiles.Files {
	return tlsfiles.Files{CA: uri.CACertFile, Cert: uri.CertFile, Key: uri.KeyFile, ServerName: uri.ServerName, ServerNameKey: "amqp.server_name"}
}

// explained says what is wrong when the broker refuses this side's certificate. With TLS 1.3 that comes instead of its first answer, while this side
// already writes.
type explained struct {
	net.Conn
	files    tlsfiles.Files
	host     string
	answered atomic.Bool
	over     chan struct{} // closed when the first read has failed
	failure  error         // of that
	refused  bool          // and that was a refusal
}

// refusalLimit is how long a failed write waits for the reason.
const refusalLimit = time.Second

// Read implements [io.Reader].
func (e *explained) Read(p []byte) (int, error) {
	n, err := e.Conn.Read(p)
	if e.answered.Load() {
		return n, err
	}
	if err != nil {
		e.failure = e.files.Explain(err, e.host)
		e.refused = e.failure != err //nolint:errorlint // whether something was added to it
		err = e.failure
		close(e.over)
	}
	e.answered.Store(true)
	return n, err
}

// Write implements [io.Writer]. Of two errors it prefers the one that was read: that the socket is closed is only what follows.
func (e *explained) Write(p []byte) (int, error) {
	n, err := e.Conn.Write(p)
	if err == nil {
		return n, nil
	}
	limit := refusalLimit
	if e.answered.Load() {
		limit = 0
	}
	select {
	case <-e.over:
		return n, e.failure
	case <-time.After(limit):
		return n, err
	}
}

// refusal is what the broker said instead of its first answer; nil if it did not. The library may tell less of it.
func (d *deadlineConn) refusal() error {
	if opening, ok := d.Conn.(interface{ refusal() error }); ok {
		return opening.refusal()
	}
	return nil
}

func (e *explained) refusal() error {
	select {
	case <-e.over:
		if e.refused {
			return e.failure
		}
	default:
	}
	return nil
}
