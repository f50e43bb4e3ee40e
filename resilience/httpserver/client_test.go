package httpserver_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

func from(peer string, forwarded ...string) *http.Request {
	r := &http.Request{RemoteAddr: peer, Header: http.Header{}}
	if forwarded != nil {
		r.Header["X-Forwarded-For"] = forwarded
	}
	return r
}

func TestAClientIsItsAddressUnlessToldOtherwise(t *testing.T) {
	t.Parallel()
	behind := httpserver.Behind(netip.MustParsePrefix("10.0.0.0/8"))
	for _, c := range []struct {
		client httpserver.ClientFunc
		r      *http.Request
		want   string
	}{
		{httpserver.RemoteAddress, from("192.0.2.1:1234"), "192.0.2.1"},
		{httpserver.RemoteAddress, from("192.0.2.1:1234", "198.51.100.1"), "192.0.2.1"},
		{httpserver.RemoteAddress, from("[::ffff:192.0.2.1]:1234"), "192.0.2.1"},
		{httpserver.RemoteAddress, from("[2001:db8:1:2:3:4:5:6]:1"), "2001:db8:1:2::/64"},
		{httpserver.RemoteAddress, from("[2001:db8:1:2:ffff::1]:1"), "2001:db8:1:2::/64"},
		{httpserver.RemoteAddress, from("[fe80::1%eth0]:1"), "fe80::/64"},
		{httpserver.RemoteAddress, from("@"), "@"},
		{behind, from("192.0.2.1:1", "198.51.100.1"), "192.0.2.1"},
		{behind, from("10.1.1.1:1"), "10.1.1.1"},
		{behind, from("10.1.1.1:1", "198.51.100.1"), "198.51.100.1"},
		{behind, from("[::ffff:10.1.1.1]:1", "198.51.100.1"), "198.51.100.1"},
		{behind, from("10.1.1.1:1", "203.0.113.66, 198.51.100.1"), "198.51.100.1"},
		{behind, from("10.1.1.1:1", "203.0.113.66, 198.51.100.1 ,10.2.2.2"), "198.51.100.1"},
		{behind, from("10.1.1.1:1", "203.0.113.66", "198.51.100.1", "10.2.2.2,10.3.3.3"), "198.51.100.1"},
		{behind, from("10.1.1.1:1", "198.51.100.1, junk"), "10.1.1.1"},
		{behind, from("10.1.1.1:1", "198.51.100.1, junk, 10.2.2.2"), "10.2.2.2"},
		{behind, from("10.1.1.1:1", "10.2.2.2"), "10.2.2.2"},
		{behind, from("@", "198.51.100.1"), "@"},
		{httpserver.Everyone, from("192.0.2.1:1"), ""},
	} {
		require.Equal(t, c.want, c.client(c.r), "%s %q", c.r.RemoteAddr, c.r.Header)
	}
}

// What a client writes in front of what the proxy adds never makes it another client.
func TestAForgedForwardedForChangesNothing(t *testing.T) {
	t.Parallel()
	behind := httpserver.Behind(netip.MustParsePrefix("10.0.0.0/8"))
	rapid.Check(t, func(t *rapid.T) {
		piece := rapid.OneOf(rapid.StringMatching(`[0-9a-f.:, ]{0,20}`), rapid.String())
		forged := rapid.SliceOfN(piece, 0, 4).Draw(t, "forged")
		header := strings.Join(append(forged, "198.51.100.1"), ",")
		if got := behind(from("10.1.1.1:1", header)); got != "198.51.100.1" {
			t.Fatalf("%q is %s", header, got)
		}
	})
}

func BenchmarkRemoteAddress(b *testing.B) {
	r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/", http.NoBody)
	for b.Loop() {
		httpserver.RemoteAddress(r)
	}
}
