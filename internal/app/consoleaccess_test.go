package app_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/access"
	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// The console of `surefoot run`, as it is configured: on all addresses, by TLS, with passwords from a file.
func TestTheConsoleBeyondLoopback(t *testing.T) {
	t.Parallel()
	const password = "correct horse battery"
	authority := testkit.NewAuthority(t)
	pair := authority.Issue(t, testkit.Certificate{})
	line, err := access.HashPassword("ann", access.Operate, password)
	require.NoError(t, err)
	users := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(users, []byte(line), 0o600))
	c := config.Default()
	c.HTTP.CertFile, c.HTTP.KeyFile = pair.Cert, pair.Key
	c.HTTP.Listen, c.Console.Listen, c.Console.PublicURL, c.Console.CertFile, c.Console.KeyFile, c.Console.Login.UsersFile = "127.0.0.1:0", "0.0.0.0:0", "https://ops.example.org", pair.Cert, pair.Key, users
	c.Database.Source, c.AMQP.Source = "postgres://nobody:secret@127.0.0.1:1/none", "amqp://nobody:secret@127.0.0.1:1/"
	c.Database.URL, c.AMQP.URL = c.Database.Source, c.AMQP.Source
	addr, probes, done := make(chan string, 1), make(chan string, 1), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		done <- app.Run(ctx, app.Options{Config: &c, Roles: []string{"console"}, Logger: zerolog.New(served(addr)), Version: "v9", Listening: func(at string) { probes <- at }})
	}()
	port := ""
	select {
	case at := <-addr:
		port = at[strings.LastIndex(at, ":"):]
	case err := <-done:
		require.FailNow(t, "it does not serve", "%v", err)
	}
	trusted := x509.NewCertPool()
	pem, err := os.ReadFile(authority.File)
	require.NoError(t, err)
	require.True(t, trusted.AppendCertsFromPEM(pem))
	client := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}
	alive, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+<-probes+"/livez", http.NoBody)
	require.NoError(t, err)
	response, err := client.RoundTrip(alive)
	require.NoError(t, err, "the probes have the certificate of http.cert_file")
	require.NoError(t, response.Body.Close())
	logIn := func(password string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://127.0.0.1"+port+"/login", strings.NewReader(url.Values{"name": {"ann"}, "password": {password}}.Encode()))
		require.NoError(t, err)
		r.Host = "ops.example.org"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		response, err := client.RoundTrip(r)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	require.Equal(t, http.StatusUnauthorized, logIn("another password"))
	require.Equal(t, http.StatusSeeOther, logIn(password))
	stop()
	require.NoError(t, <-done)
}

// What the configuration says of the provider is what the console asks with; the secret is read for each login.
func TestTheProviderOfAConfiguration(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	c := config.Default()
	c.AMQP.Source = "amqp://nobody:secret@127.0.0.1:1/"
	secret := filepath.Join(t.TempDir(), "secret")
	o := &c.Console.Login.OIDC
	o.Issuer, o.ClientID, o.ClientSecretFile = "https://id.example.org", "surefoot", secret
	c.Console.Login.Roles.Admin = []string{"leads"}
	_, err := app.ConsoleOptions(&c, db.Pool, zerolog.Nop(), "host", "v9")
	require.ErrorContains(t, err, "client_secret_file")
	require.NoError(t, os.WriteFile(secret, []byte("first\n"), 0o600))
	options, err := app.ConsoleOptions(&c, db.Pool, zerolog.Nop(), "host", "v9")
	require.NoError(t, err)
	got := options.Access
	require.Equal(t, []string{"https://id.example.org", "surefoot", "preferred_username", "groups", "leads"}, []string{got.OIDC.Issuer, got.OIDC.ClientID, got.OIDC.NameClaim, got.OIDC.RoleClaim, got.Mapping.Admin[0]})
	require.NotZero(t, got.OIDC.Client.Timeout)
	require.Contains(t, options.Mask, "*password*")
	require.NoError(t, os.WriteFile(secret, []byte("second\n"), 0o600))
	now, err := got.OIDC.Secret()
	require.NoError(t, err)
	require.Equal(t, "second", now)
	o.CAFile = secret
	_, err = app.ConsoleOptions(&c, db.Pool, zerolog.Nop(), "host", "v9")
	require.ErrorContains(t, err, "ca_file")
}
