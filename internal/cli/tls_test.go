package cli_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// Commands reach services that want TLS and a certificate by what the configuration says, and tell whoever has none what to set.
func TestCommandsOverTLS(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t)
	server, broker := testkit.PrivatePostgres(t), testkit.TLSBroker(t, authority)
	own := authority.Issue(t, testkit.Certificate{Name: "surefoot"})
	server.RequireTLS(t, authority, own)
	e := env("topology: {exchange: events, queues: [{name: q, bindings: [q]}]}\n")
	read := e.ReadFile
	e.ReadFile = func(path string) ([]byte, error) {
		if filepath.IsAbs(path) {
			return os.ReadFile(path)
		}
		return read(path)
	}
	trust := []string{
		"SUREFOOT_DATABASE_URL=" + testkit.WithQuery(t, server.URL, "sslmode", ""), "SUREFOOT_AMQP_URL=" + broker.TLS.URL, "SUREFOOT_MANAGEMENT_URL=" + broker.TLS.ManagementURL,
		"SUREFOOT_DATABASE_CA_FILE=" + authority.File, "SUREFOOT_AMQP_CA_FILE=" + authority.File,
	}
	show := append([]string{
		"SUREFOOT_DATABASE_CERT_FILE=" + own.Cert, "SUREFOOT_DATABASE_KEY_FILE=" + own.Key, "SUREFOOT_AMQP_CERT_FILE=" + own.Cert, "SUREFOOT_AMQP_KEY_FILE=" + own.Key,
	}, trust...)
	e.Environ = show
	testkit.Eventually(t, 20*time.Second, "the database to want TLS", func() bool { return run(t, e, "migrate", "status").code == cli.ExitDiffers })
	for _, args := range [][]string{{"migrate", "up"}, {"topology", "apply", "--yes"}, {"topology", "plan"}, {"outbox", "ls"}, {"dlq", "ls"}, {"topology", "export"}} {
		got := run(t, e, args...)
		require.Zero(t, got.code, "%s: %s", args, got.stderr)
	}
	got := run(t, e, "doctor")
	require.NotContains(t, got.stdout, "client certificate")
	require.NotContains(t, got.stdout, "set database.cert_file")
	require.Regexp(t, `OK +certificates +database.cert_file +is valid until`, got.stdout)

	e.Environ = trust
	got = run(t, e, "migrate", "status")
	require.Equal(t, cli.ExitDenied, got.code)
	require.Contains(t, got.stderr, "connection requires a valid client certificate")
	require.Contains(t, got.stderr, "hint: set database.cert_file and key_file to a certificate that the server trusts")
	got = run(t, e, "doctor")
	require.Contains(t, got.stdout, "set database.cert_file and key_file")
	require.Contains(t, got.stdout, "127.0.0.1 wants a client certificate: set cert_file and key_file")
}
