package testkit

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// balancer is a TCP load balancer, as stands in front of a cluster: each connection goes to a backend at random of those that accept one.
type balancer struct {
	listener net.Listener
	backends []string
	carriers sync.WaitGroup
}

// balance listens on a free port of 127.0.0.1 for the backends, each host:port, and returns its own. It ends with the test.
func balance(t testing.TB, backends ...string) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &balancer{listener: listener, backends: backends}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	b.carriers.Go(func() { b.serve(ctx) })
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		b.carriers.Wait()
	})
	return listener.Addr().String()
}

func (b *balancer) serve(ctx context.Context) {
	for {
		client, err := b.listener.Accept()
		if err != nil {
			return // closed
		}
		b.carriers.Go(func() { b.carry(ctx, client) })
	}
}

// carry ends when either side does.
func (b *balancer) carry(ctx context.Context, client net.Conn) {
	defer client.Close()
	server := b.dial(ctx)
	if server == nil {
		return
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { _ = client.Close(); _ = server.Close() })()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			_ = client.Close()
			_ = server.Close()
		})
	}
	both.Wait()
}

func (b *balancer) dial(ctx context.Context) net.Conn {
	for _, i := range rand.Perm(len(b.backends)) {
		if conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", b.backends[i]); err == nil {
			return conn
		}
	}
	return nil
}
