package httpserver

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// ClientFunc names the client that sent a request, for limits: an address, a tenant, an API key. It must not take what
// anybody may write into a header for granted. It must be safe for concurrent use.
type ClientFunc func(r *http.Request) string

// RemoteAddress is the address at the other end of the connection, without its port. Of IPv6 it is the /64 network, for
// whoever has one address there has them all. No header is looked at: behind a proxy use [Behind].
func RemoteAddress(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr // a Unix socket
	}
	return network(peer.Addr())
}

// Everyone is one client for all requests: the limit is then the route's.
func Everyone(*http.Request) string { return "" }

// Behind names clients by X-Forwarded-For where the connection comes from one of the proxies: the last address in it that
// is no proxy's, for only what a proxy has added can be believed. From anywhere else it is [RemoteAddress].
func Behind(proxies ...netip.Prefix) ClientFunc {
	trusted := func(a netip.Addr) bool {
		return slices.ContainsFunc(proxies, func(p netip.Prefix) bool { return p.Contains(a) })
	}
	return func(r *http.Request) string {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if err != nil || !trusted(peer.Addr().Unmap()) {
			return RemoteAddress(r)
		}
		client := peer.Addr()
		for _, header := range slices.Backward(r.Header.Values("X-Forwarded-For")) {
			for header != "" {
				before, last, found := cutLast(header)
				hop, err := netip.ParseAddr(strings.TrimSpace(last))
				if err != nil {
					return network(client) // what is further left was not written by a proxy of ours
				}
				if client = hop.Unmap(); !trusted(client) {
					return network(client)
				}
				if header = before; !found {
					break
				}
			}
		}
		return network(client)
	}
}

// cutLast takes the last element off a comma-separated list.
func cutLast(list string) (before, last string, found bool) {
	if i := strings.LastIndexByte(list, ','); i >= 0 {
		return list[:i], list[i+1:], true
	}
	return "", list, false
}

func network(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		if prefix, err := a.Prefix(64); err == nil {
			return prefix.String()
		}
	}
	return a.String()
}
