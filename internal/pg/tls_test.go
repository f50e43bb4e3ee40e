package pg_test

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/internal/urlfile"
)

func open(t *testing.T, u string) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), pg.Options{URL: u, MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// A server that wants TLS and a client certificate lets in who has the right files, and whoever has not is told which is wrong.
func TestTLS(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t)
	authority, other := testkit.NewAuthority(t), testkit.NewAuthority(t)
	good := authority.Issue(t, testkit.Certificate{Name: "surefoot"})
	foreign := other.Issue(t, testkit.Certificate{Name: "surefoot"})
	server.RequireTLS(t, authority, good)
	right := testkit.WithQuery(t, server.URL, "sslmode", "verify-full", "sslrootcert", authority.File, "sslcert", good.Cert, "sslkey", good.Key)
	testkit.Eventually(t, 10*time.Second, "TLS", func() bool { return open(t, right).Ping(t.Context()) == nil })

	pool := open(t, right)
	var encrypted bool
	var version, client string
	require.NoError(t, pool.QueryRow(t.Context(), "SELECT ssl, version, client_dn FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&encrypted, &version, &client))
	require.True(t, encrypted)
	require.Equal(t, []string{"TLSv1.3", "/CN=surefoot"}, []string{version, client})
	_, err := pg.Migrate(t.Context(), pg.MigrateOptions{URL: right})
	require.NoError(t, err)
	conn, err := pg.Connect(t.Context(), right)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))

	for name, tt := range map[string]struct{ url, want, advice string }{
		"wrong authority":    {testkit.WithQuery(t, right, "sslrootcert", other.File), "the certificate of the database is signed by none of the authorities in " + other.File, ""},
		"no certificate":     {testkit.WithQuery(t, right, "sslcert", "", "sslkey", ""), "connection requires a valid client certificate", "set database.cert_file and key_file"},
		"foreign client":     {testkit.WithQuery(t, right, "sslcert", foreign.Cert, "sslkey", foreign.Key), "connection requires a valid client certificate", "set database.cert_file and key_file"},
		"without encryption": {testkit.WithQuery(t, right, "sslmode", "disable"), "no encryption", "take this user over TLS only: set database.ca_file"},
		"no TLS there":       {testkit.WithQuery(t, testkit.Database(t).Direct, "sslmode", "require"), "server refused TLS connection", "the server speaks no TLS: set ssl = on there"},
	} {
		t.Run(name, func(t *testing.T) {
			err := open(t, tt.url).Ping(t.Context())
			require.ErrorContains(t, err, tt.want)
			require.Contains(t, pg.TLSAdvice(err), tt.advice)
			require.Equal(t, tt.advice == "", pg.TLSAdvice(err) == "")
		})
	}
	for want, own := range map[string]testkit.Pair{
		"have it renewed, or set this machine's clock":                                         authority.Issue(t, testkit.Certificate{Expired: true}),
		`the certificate is for "db.example.org" and not for 127.0.0.1: connect by one of its`: authority.Issue(t, testkit.Certificate{Hosts: []string{"db.example.org"}}),
	} {
		server.ShowCertificate(t, own, testkit.WithQuery(t, right, "sslmode", "require", "sslrootcert", ""))
		testkit.Eventually(t, 10*time.Second, want, func() bool {
			err = open(t, right).Ping(t.Context())
			return err != nil && pg.IsUnavailable(err)
		})
		require.ErrorContains(t, err, want)
	}
}

// What is in the files counts from the next connection, of the pool that is there.
func TestReplacedCertificatesCountFromTheNextConnection(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t)
	authority, other := testkit.NewAuthority(t), testkit.NewAuthority(t)
	own := authority.Issue(t, testkit.Certificate{Name: "surefoot"})
	trusted := filepath.Join(t.TempDir(), "ca.pem")
	copyFile(t, authority.File, trusted)
	server.RequireTLS(t, authority, own)
	u := testkit.WithQuery(t, server.URL, "sslmode", "verify-full", "sslrootcert", trusted, "sslcert", own.Cert, "sslkey", own.Key)
	pool := open(t, u)
	testkit.Eventually(t, 10*time.Second, "TLS", func() bool { return pool.Ping(t.Context()) == nil })
	server.ShowCertificate(t, other.Issue(t, testkit.Certificate{}), u)
	testkit.Eventually(t, 10*time.Second, "the other certificate", func() bool {
		pool.Reset()
		return pool.Ping(t.Context()) != nil
	})
	copyFile(t, other.File, trusted)
	require.NoError(t, pool.Ping(t.Context()))
	require.NoError(t, os.WriteFile(trusted, nil, 0o600))
	pool.Reset()
	err := pool.Ping(t.Context())
	require.ErrorContains(t, err, "files for TLS that the database URL names: unable to add CA to cert pool")
	require.True(t, pg.IsUnavailable(err), "it may be there in a moment, and burns nobody's attempts")
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, text, 0o600))
}

func TestFilesThatAreMissingAreNamed(t *testing.T) {
	t.Parallel()
	pair := testkit.NewAuthority(t).Issue(t, testkit.Certificate{})
	for query, want := range map[string]string{
		"sslrootcert=/no/such/ca":                       "unable to read CA file: open /no/such/ca: no such file",
		"sslcert=/no/such/cert&sslkey=" + pair.Key:      "open /no/such/cert: no such file",
		"sslcert=" + pair.Cert + "&sslkey=/no/such/key": "open /no/such/key: no such file",
		"sslcert=" + pair.Cert:                          `both "sslcert" and "sslkey" are required`,
		"sslcert=" + pair.Key + "&sslkey=" + pair.Key:   "files for TLS that the database URL names",
	} {
		_, err := pg.Open(t.Context(), pg.Options{URL: "postgres://ann:hunter2@host/db?sslmode=verify-full&" + query})
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "hunter2")
	}
	_, err := pg.Open(t.Context(), pg.Options{URL: "file:///no/such/url"})
	require.ErrorContains(t, err, "database URL: the file of a URL cannot be read: open /no/such/url: no such file")
}

// A password that is rotated, with the URL in a file, needs no other pool: the next connection has it.
func TestARotatedPasswordNeedsNoRestart(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	role := testkit.Name("rotated")
	_, err := db.Pool.Exec(t.Context(), fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD 'before'", role))
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = db.Pool.Exec(t.Context(), "DROP ROLE "+role) })
	path := filepath.Join(t.TempDir(), "url")
	write := func(password string) {
		require.NoError(t, os.WriteFile(path, []byte(asUser(t, db.Direct, role, password)+"\n"), 0o600))
	}
	write("before")
	pool := open(t, urlfile.Name(path, url.Values{"application_name": {"rotation"}}))
	require.NoError(t, pool.Ping(t.Context()))
	_, err = db.Pool.Exec(t.Context(), fmt.Sprintf("ALTER ROLE %s PASSWORD 'after'", role))
	require.NoError(t, err)
	require.NoError(t, pool.Ping(t.Context()), "who is connected stays")
	pool.Reset()
	require.ErrorContains(t, pool.Ping(t.Context()), "28P01")
	write("after")
	require.NoError(t, pool.Ping(t.Context()))
	require.NoError(t, os.Remove(path))
	pool.Reset()
	err = pool.Ping(t.Context())
	require.ErrorContains(t, err, path)
	require.True(t, pg.IsUnavailable(err))
	write("after")
	var name string
	require.NoError(t, pool.QueryRow(t.Context(), "SHOW application_name").Scan(&name))
	require.Equal(t, "rotation", name)
}
