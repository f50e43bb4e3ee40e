package config_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/config"
)

// What would let anybody in, or let others read, is refused before anything is served, with what to do.
func TestFaultsOfTheConsole(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"listen: '0.0.0.0:9465'":                     "there is no login",
		"{listen: ':9465', login: {users_file: /u}}": "in the clear",

		"{listen: 0.0.0.0:9465, cert_file: /c, key_file: /k, login: {users_file: /u}}": "console.public_url: is missing",
		"public_url: http://ops.example.org":                                           "must begin with https://",
		"public_url: https://ops.example.org/x":                                        "without a path and a user",
		"public_url: 'https://ann:secret@ops.example.org'":                             "without a path and a user",

		"cert_file: /c":                        "needs console.key_file",
		"client_ca_file: /c":                   "needs console.cert_file",
		"trusted_proxies: [0.0.0.0/0]":         "nearly everybody",
		"trusted_proxies: ['::/0']":            "nearly everybody",
		"trusted_proxies: [proxy.example.org]": "addresses or networks",
		"mask: ['*']":                          "a pattern is a name",

		"login: {users_file: /u, oidc: {issuer: 'https://id', client_id: x}, roles: {view: [a]}}":                "oidc and users_file, but one way",
		"login: {header: {user: X-User, groups: X-Groups}, roles: {view: [a]}}":                                  "needs console.trusted_proxies",
		"{trusted_proxies: [10.0.0.1], login: {header: {user: X-User}, roles: {view: [a]}}}":                     "groups: is missing",
		"{trusted_proxies: [10.0.0.1], login: {header: {user: 'X User', groups: X-Groups}, roles: {view: [a]}}}": "name of a header",
		"{trusted_proxies: [10.0.0.1], login: {header: {user: X-User, groups: X-Groups}}}":                       "nobody could log in",
		"login: {oidc: {issuer: 'http://id.example.org', client_id: x}, roles: {view: [a]}}":                     "must begin with https://",
		"login: {oidc: {issuer: 'https://id.example.org'}, roles: {view: [a]}}":                                  "client_id: is missing",
		"login: {oidc: {issuer: 'https://id.example.org', client_id: x, scopes: [profile]}, roles: {view: [a]}}": "must have openid",
		"login: {oidc: {issuer: 'https://id.example.org', client_id: x, role_claim: ''}, roles: {view: [a]}}":    "must name a claim",
		"login: {idle: 1s}":               "console.login.idle",
		"login: {idle: 2h, absolute: 1h}": "console.login.absolute",
	} {
		_, err := load("console: " + wrapped(text))
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "secret")
	}
	for _, fine := range []string{
		"listen: 127.0.0.1:9465",
		"{listen: 0.0.0.0:9465, public_url: 'https://ops.example.org', trusted_proxies: [10.0.0.1, 10.1.0.0/16, 'fd00:1::/64'], login: {users_file: /u}}",
		"{listen: 0.0.0.0:9465, public_url: 'https://ops.example.org', trusted_proxies: [10.0.0.1], login: {header: {user: X-User, groups: X-Groups}, roles: {admin: [a]}}}",
		"{listen: '[::1]:0', login: {oidc: {issuer: 'http://localhost:8080/realms/ops', client_id: x}, roles: {operate: [a]}}}",
	} {
		c, err := load("console: " + wrapped(fine))
		require.NoError(t, err, fine)
		_, err = c.Console.Proxies()
		require.NoError(t, err)
	}
}

// wrapped is a mapping on one line.
func wrapped(text string) string {
	if text[0] == '{' {
		return text
	}
	return "{" + text + "}"
}

func TestProxiesOfIPv4AreOneHoweverTheyAreWritten(t *testing.T) {
	t.Parallel()
	c := config.Console{TrustedProxies: []string{"10.1.2.3", "::ffff:10.1.2.3", "10.1.2.3/32", "::ffff:10.1.2.3/128"}}
	proxies, err := c.Proxies()
	require.NoError(t, err)
	for _, p := range proxies {
		require.Equal(t, netip.MustParsePrefix("10.1.2.3/32"), p)
	}
	c.TrustedProxies = []string{"::ffff:0:0/96"}
	_, err = c.Proxies()
	require.ErrorContains(t, err, "nearly everybody")
}
