package rabbit_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/internal/urlfile"
	"github.com/surefoot-mq/surefoot/resilience"
)

// try connects once to the broker, and asks its management API, and returns both errors.
func try(t *testing.T, amqpURL, managementURL string) (broker, management error) {
	t.Helper()
	conn, broker := rabbit.Dial(t.Context(), rabbit.Options{URL: amqpURL, Role: "test"})
	if broker == nil {
		require.NoError(t, conn.Close())
	}
	m, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: amqpURL, URL: managementURL})
	require.NoError(t, err)
	_, management = m.Queues(t.Context())
	return broker, management
}

// onPort is a URL with the host and port of another one.
func onPort(t *testing.T, raw, other string) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	at, err := url.Parse(other)
	require.NoError(t, err)
	u.Host = at.Host
	return u.String()
}

// crossed has the scheme speak to the port that does not: secure and clear are the URLs that fit.
func crossed(t *testing.T, scheme, secure, clear string) string {
	t.Helper()
	if strings.HasSuffix(scheme, "s") {
		return onPort(t, secure, clear)
	}
	return onPort(t, clear, secure)
}

// A broker that verifies its peers lets in who has the right files, and whoever has not is told which is wrong.
func TestTLSOfTheBroker(t *testing.T) {
	t.Parallel()
	authority, other := testkit.NewAuthority(t), testkit.NewAuthority(t)
	server := testkit.TLSBroker(t, authority)
	good, foreign, over := authority.Issue(t, testkit.Certificate{}), other.Issue(t, testkit.Certificate{}), authority.Issue(t, testkit.Certificate{Expired: true})
	at := func(pairs ...string) string {
		return testkit.WithQuery(t, server.TLS.URL, append([]string{"cacertfile", authority.File, "certfile", good.Cert, "keyfile", good.Key}, pairs...)...)
	}
	broker, management := try(t, at(), server.TLS.ManagementURL)
	require.NoError(t, broker)
	require.NoError(t, management)

	for want, u := range map[string]string{
		"is signed by none of the authorities in " + other.File: at("cacertfile", other.File),
		"is signed by none of the authorities in the system's":  at("cacertfile", ""),
	} {
		broker, management = try(t, u, server.TLS.ManagementURL)
		require.ErrorContains(t, broker, want)
		require.ErrorContains(t, management, want)
	}
	for want, u := range map[string]string{
		"127.0.0.1 wants a client certificate: set cert_file and key_file": at("certfile", "", "keyfile", ""),
		"does not trust the certificate in " + foreign.Cert:                at("certfile", foreign.Cert, "keyfile", foreign.Key),
		"the certificate in " + over.Cert + " has expired":                 at("certfile", over.Cert, "keyfile", over.Key),
		`the certificate is for "localhost, 127.0.0.1" and not for other`:  at("server_name_indication", "other"),
		"cert_file and key_file belong together":                           at("keyfile", ""),
		"ca_file cannot be read: open /no/such/ca":                         at("cacertfile", "/no/such/ca"),
	} {
		broker, _ = try(t, u, "")
		require.ErrorContains(t, broker, want)
	}

	for scheme, want := range map[string][2]string{
		"amqp":  {"the broker speaks TLS on this port: write amqps:// in its URL", "speaks TLS on this port: write https:// in the URL"},
		"amqps": {"127.0.0.1 speaks no TLS on this port: give the port of its TLS listener", "speaks no TLS on this port: give the port of its TLS listener, or write http://"},
	} {
		broker, management = try(t, crossed(t, scheme, at(), server.URL), crossed(t, strings.Replace(scheme, "amqp", "http", 1), server.TLS.ManagementURL, server.ManagementURL))
		require.ErrorContains(t, broker, want[0])
		require.ErrorContains(t, management, want[1])
	}
	broker, management = try(t, onPort(t, server.URL, server.ManagementURL), onPort(t, server.ManagementURL, server.URL))
	require.ErrorContains(t, broker, "where this port speaks TLS, as 5671 by default, write amqps:// in the URL")
	require.Equal(t, resilience.ClassUnavailable, resilience.Classify(broker))
	require.ErrorContains(t, management, "speaks AMQP on this port: give the one of HTTP")

	server.ShowCertificate(t, authority, testkit.Certificate{Expired: true})
	broker, management = try(t, at(), server.TLS.ManagementURL)
	require.ErrorContains(t, broker, "the certificate of 127.0.0.1, or of its authority, is valid from")
	require.ErrorContains(t, management, "have it renewed, or set this machine's clock")
	server.ShowCertificate(t, authority, testkit.Certificate{Hosts: []string{"mq.example.org"}})
	broker, management = try(t, at(), server.TLS.ManagementURL)
	require.ErrorContains(t, broker, `the certificate is for "mq.example.org" and not for 127.0.0.1: connect by one of its names, or set amqp.server_name to one`)
	require.ErrorContains(t, management, `the certificate is for "mq.example.org"`)
	broker, management = try(t, at("server_name_indication", "mq.example.org"), server.TLS.ManagementURL)
	require.NoError(t, broker)
	require.NoError(t, management)
}

// A password that is rotated, with the URL in a file, counts from the next connection and the next question to the management API.
func TestARotatedPasswordNeedsNoRestart(t *testing.T) {
	t.Parallel()
	admin := testkit.Broker(t)
	user := testkit.Name("rotated")
	password := func(p string) {
		admin.API(t, "PUT", "/api/users/"+user, map[string]string{"password": p, "tags": "monitoring"}, nil)
	}
	password("before")
	defer admin.API(t, "DELETE", "/api/users/"+user, nil, nil)
	admin.API(t, "PUT", "/api/permissions/"+admin.Vhost+"/"+user, map[string]string{"configure": ".*", "write": ".*", "read": ".*"}, nil)
	path := filepath.Join(t.TempDir(), "url")
	write := func(p string) {
		u, err := url.Parse(admin.URL)
		require.NoError(t, err)
		u.User = url.UserPassword(user, p)
		require.NoError(t, os.WriteFile(path, []byte(u.String()+"\n"), 0o600))
	}
	write("before")
	opts := rabbit.Options{URL: urlfile.Name(path, nil), Role: "test"}
	m, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: opts.URL, URL: admin.ManagementURL})
	require.NoError(t, err)
	connect := func() error {
		conn, err := rabbit.Dial(t.Context(), opts)
		if err == nil {
			require.Equal(t, user, conn.User())
			require.NoError(t, conn.Close())
		}
		return err
	}
	ask := func() error {
		_, err := m.Queues(t.Context())
		return err
	}
	require.NoError(t, connect())
	require.NoError(t, ask())
	password("after")
	require.ErrorContains(t, connect(), "403")
	require.ErrorIs(t, ask(), rabbit.ErrManagementDenied)
	write("after")
	require.NoError(t, connect())
	require.NoError(t, ask())
	require.NoError(t, os.Remove(path))
	require.ErrorContains(t, connect(), path)
	require.ErrorContains(t, ask(), path)
}
