// Package listener opens what the servers of Surefoot's own pages, the console and the probes, listen on: with TLS from files that may be
// replaced, connections that are bounded, and a log of them that nobody can fill.
package listener

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
)

// Options of a listener.
type Options struct {
	// Address is host:port; port 0 takes any free one. Required.
	Address string
	// Name is that of its section in the configuration, for errors and log lines. Required.
	Name string
	// Files are its certificate and, with CA, the authorities of those that clients must show. Default: none, no TLS.
	Files tlsfiles.Files
	// Connections is how many there are at most at a time, and PerHost how many of one address, of IPv6 of one network of 64 bits. Whoever comes beyond
	// is hung up on at once. Required.
	Connections, PerHost int
	// Many says of which addresses there may be as many as of all: those of proxies. Default: of none.
	Many func(netip.Addr) bool
	// Logger of certificates that cannot be used. Default: none.
	Logger zerolog.Logger
}

// Listen opens it. The caller closes it.
func Listen(ctx context.Context, o Options) (net.Listener, error) {
	opened, err := new(net.ListenConfig).Listen(ctx, "tcp", o.Address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s (choose another %s.listen): %w", o.Address, o.Name, err)
	}
	bounded := &limited{Listener: opened, opts: o, of: map[netip.Prefix]int{}}
	if o.Files.Cert == "" {
		return bounded, nil
	}
	config, err := o.Files.Server(o.log)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("TLS of %s.listen: %w", o.Name, err), opened.Close())
	}
	return tls.NewListener(bounded, config), nil
}

// log says that the certificate cannot be used as its files are now, and that it can again when err is nil.
func (o Options) log(err error) {
	if err != nil {
		o.Logger.Warn().Err(err).Str("listener", o.Name).Msg("certificate cannot be used")
		return
	}
	o.Logger.Info().Str("listener", o.Name).Msg("certificate can be used again")
}

// limited counts connections.
type limited struct {
	net.Listener
	opts Options

	mu  sync.Mutex
	all int
	of  map[netip.Prefix]int // by network
}

// Accept implements [net.Listener]. It waits for one for which there is a place.
func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if network, ok := l.enter(conn); ok {
			return &counted{Conn: conn, leave: func() { l.leave(network) }}, nil
		}
		_ = conn.Close()
	}
}

func (l *limited) enter(conn net.Conn) (netip.Prefix, bool) {
	addr := addrOf(conn)
	network := networkOf(addr)
	many := l.opts.Many != nil && l.opts.Many(addr)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.opts.Connections || !many && l.of[network] >= l.opts.PerHost {
		return network, false
	}
	l.all++
	l.of[network]++
	return network, true
}

func (l *limited) leave(network netip.Prefix) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.of[network]--; l.of[network] == 0 {
		delete(l.of, network)
	}
}

func addrOf(conn net.Conn) netip.Addr {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// networkOf is the address; of IPv6 its network, for there everybody has many.
func networkOf(addr netip.Addr) netip.Prefix {
	bits := addr.BitLen()
	if addr.Is6() && !addr.IsLoopback() {
		bits = 64
	}
	network, _ := addr.Prefix(bits)
	return network
}

// counted gives its place back when it is closed.
type counted struct {
	net.Conn
	once  sync.Once
	leave func()
}

// Close implements [net.Conn].
func (c *counted) Close() error {
	c.once.Do(c.leave)
	return c.Conn.Close()
}
