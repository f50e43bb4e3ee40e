package testkit

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// RequireTLS has the server take connections over TLS only, from clients with a certificate of the authority that names the user: ssl = on,
// clientcert = verify-full. It shows the given certificate. Whoever is connected already stays.
func (p *PostgresServer) RequireTLS(t testing.TB, authority *Authority, own Pair) {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), p.URL)
	require.NoError(t, err)
	defer admin.Close(context.WithoutCancel(t.Context()))
	p.install(t, own)
	p.cluster(t, "pg_hba.conf", []byte("hostssl all all 127.0.0.1/32 scram-sha-256 clientcert=verify-full\n"))
	for _, set := range []string{
		"ssl_ca_file = '" + authority.File + "'", "ssl_cert_file = 'test.pem'", "ssl_key_file = 'test-key.pem'", "ssl = on",
	} {
		_, err := admin.Exec(t.Context(), "ALTER SYSTEM SET "+set)
		require.NoError(t, err)
	}
	reload(t, admin)
}

// ShowCertificate has a server of RequireTLS show another certificate to the connections that come; admin is a URL that gets in.
func (p *PostgresServer) ShowCertificate(t testing.TB, own Pair, admin string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), admin)
	require.NoError(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	p.install(t, own)
	reload(t, conn)
}

// SecureBroker is a RabbitMQ server of the test's own that also listens with TLS: to AMQP from clients with a certificate of its authority only
// (verify_peer and fail_if_no_peer_cert), and to the management API.
type SecureBroker struct {
	*BrokerServer
	// TLS are the addresses with TLS, with user and password. What they are to trust and to show is missing in them.
	TLS AMQP
	own Pair
}

// TLSBroker starts a server that shows a certificate of the authority.
func TLSBroker(t testing.TB, authority *Authority) *SecureBroker {
	t.Helper()
	server := newServer(t, "broker")
	require.NoError(t, os.WriteFile(filepath.Join(server.dir, "lock"), nil, 0o600)) // the mark of a stack's directory
	// Where the server looks even if it runs in a root of its own, as those of other generations do.
	ca, own := filepath.Join(server.dir, "ca.pem"), Pair{filepath.Join(server.dir, "cert.pem"), filepath.Join(server.dir, "key.pem")}
	writePEM(t, ca, "CERTIFICATE", authority.certificate.Raw)
	authority.IssueInto(t, own, Certificate{})
	amqpPort, managementPort := freePort(t), freePort(t)
	var settings strings.Builder
	fmt.Fprintf(&settings, "listeners.ssl.1 = 127.0.0.1:%s\nssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n"+
		"management.ssl.ip = 127.0.0.1\nmanagement.ssl.port = %s\n", amqpPort, managementPort)
	for _, of := range []string{"ssl_options", "management.ssl"} {
		fmt.Fprintf(&settings, "%[1]s.cacertfile = %[2]s\n%[1]s.certfile = %[3]s\n%[1]s.keyfile = %[4]s\n", of, ca, own.Cert, own.Key)
	}
	require.NoError(t, os.WriteFile(filepath.Join(server.dir, "broker.conf"), []byte(settings.String()), 0o600))
	env := server.begin(t)
	b := &SecureBroker{BrokerServer: &BrokerServer{server, AMQP{URL: env["SUREFOOT_AMQP_URL"], ManagementURL: env["SUREFOOT_MANAGEMENT_URL"], Vhost: "/"}}, own: own}
	u, err := url.Parse(b.URL)
	require.NoError(t, err)
	u.Scheme, u.Host = "amqps", "127.0.0.1:"+amqpPort
	b.TLS = AMQP{URL: u.String(), ManagementURL: "https://127.0.0.1:" + managementPort, Vhost: "/"}
	return b
}

// ShowCertificate has the server show another certificate of an authority to the connections that come.
func (b *SecureBroker) ShowCertificate(t testing.TB, authority *Authority, c Certificate) {
	t.Helper()
	authority.IssueInto(t, b.own, c)
	b.Ctl(t, "eval", "ssl:clear_pem_cache().")
}

func freePort(t testing.TB) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	return port
}

// reload returns before everything has changed: connections that come at once may meet the former settings.
func reload(t testing.TB, admin *pgx.Conn) {
	t.Helper()
	_, err := admin.Exec(t.Context(), "SELECT pg_reload_conf()")
	require.NoError(t, err)
}

func (p *PostgresServer) install(t testing.TB, own Pair) {
	t.Helper()
	for from, to := range map[string]string{own.Cert: "test.pem", own.Key: "test-key.pem"} {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		p.cluster(t, to, text)
	}
}

// cluster writes a file of the server, which takes only its own and secret ones.
func (p *PostgresServer) cluster(t testing.TB, name string, content []byte) {
	t.Helper()
	dir := filepath.Join(p.dir, "data", "db", "cluster")
	info, err := os.Stat(dir)
	require.NoError(t, err)
	owner, _ := info.Sys().(*syscall.Stat_t)
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	require.NoError(t, os.Chown(path, int(owner.Uid), int(owner.Gid)))
}

// WithQuery returns a URL with parameters added or replaced, given as name and value by turns; an empty value takes one away.
func WithQuery(t testing.TB, raw string, pairs ...string) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	query := u.Query()
	for i := 0; i < len(pairs); i += 2 {
		query.Del(pairs[i])
		if pairs[i+1] != "" {
			query.Set(pairs[i], pairs[i+1])
		}
	}
	u.RawQuery = query.Encode()
	return u.String()
}
