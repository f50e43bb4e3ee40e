package testkit

import (
	"bytes"
	"encoding/json"
	"net/url"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// FaultyNetwork is a TCP proxy between the code under test and a service, through which the network can fail.
// Its methods act on open connections and on those to come, until Heal.
type FaultyNetwork struct {
	proxy *toxiproxy.Proxy
}

// Proxy listens on a free port of 127.0.0.1 and forwards to the host and port of upstream, a URL. It ends with
// the test.
func Proxy(t testing.TB, upstream string) *FaultyNetwork {
	t.Helper()
	u, err := url.Parse(upstream)
	require.NoError(t, err)
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, t.Name(), "127.0.0.1:0", u.Host)
	require.NoError(t, proxy.Start())
	n := &FaultyNetwork{proxy}
	t.Cleanup(func() {
		proxy.Stop()
		proxy.Toxics.ResetToxics(t.Context())
	})
	return n
}

// Through returns the URL with the proxy's host and port in place of its own.
func (n *FaultyNetwork) Through(t testing.TB, upstream string) string {
	t.Helper()
	u, err := url.Parse(upstream)
	require.NoError(t, err)
	n.proxy.Lock()
	defer n.proxy.Unlock()
	u.Host = n.proxy.Listen
	return u.String()
}

// Latency delays every chunk by d in each direction.
func (n *FaultyNetwork) Latency(t testing.TB, d time.Duration) {
	t.Helper()
	n.both(t, "latency", map[string]int64{"latency": d.Milliseconds()})
}

// HalfOpen swallows all data in both directions and closes nothing, as a dead peer or a lost route does. Heal
// then closes those connections.
func (n *FaultyNetwork) HalfOpen(t testing.TB) {
	t.Helper()
	n.both(t, "timeout", map[string]int64{"timeout": 0})
}

// HalfOpenAnswers swallows only what the service sends: requests arrive and take effect, their answers do not. A
// connection that the service closes is closed all the same.
func (n *FaultyNetwork) HalfOpenAnswers(t testing.TB) {
	t.Helper()
	n.add(t, "timeout", "downstream", map[string]int64{"timeout": 0})
}

// Reset ends each connection abruptly as soon as something is sent over it.
func (n *FaultyNetwork) Reset(t testing.TB) {
	t.Helper()
	n.both(t, "reset_peer", map[string]int64{"timeout": 0})
}

// Cut closes every connection and refuses new ones.
func (n *FaultyNetwork) Cut() { n.proxy.Stop() }

// Redirect lets the port lead to the host and port of another upstream from now on, and closes what is open to the former.
func (n *FaultyNetwork) Redirect(t testing.TB, upstream string) {
	t.Helper()
	u, err := url.Parse(upstream)
	require.NoError(t, err)
	n.Cut()
	n.proxy.Lock()
	n.proxy.Upstream = u.Host
	n.proxy.Unlock()
	n.Heal(t)
}

// Heal ends all faults: the port accepts again, data pass untouched.
func (n *FaultyNetwork) Heal(t testing.TB) {
	t.Helper()
	n.proxy.Toxics.ResetToxics(t.Context())
	n.proxy.Lock()
	cut := !n.proxy.Enabled
	n.proxy.Unlock()
	if cut {
		require.NoError(t, n.proxy.Start()) // on the same port
	}
}

func (n *FaultyNetwork) both(t testing.TB, kind string, attributes map[string]int64) {
	t.Helper()
	n.add(t, kind, "upstream", attributes)
	n.add(t, kind, "downstream", attributes)
}

func (n *FaultyNetwork) add(t testing.TB, kind, direction string, attributes map[string]int64) {
	t.Helper()
	toxic, err := json.Marshal(map[string]any{"type": kind, "stream": direction, "attributes": attributes})
	require.NoError(t, err)
	_, err = n.proxy.Toxics.AddToxicJson(bytes.NewReader(toxic))
	require.NoError(t, err)
}
