package rabbit_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// certificate makes one for 127.0.0.1 that is its own authority, and files with it and its key.
func certificate(t *testing.T) (pair tls.Certificate, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	file := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	cert, key = file("cert.pem", "CERTIFICATE", der), file("key.pem", "PRIVATE KEY", keyDER)
	pair, err = tls.LoadX509KeyPair(cert, key)
	require.NoError(t, err)
	return pair, cert, key
}

// terminate is a TLS listener in front of a broker; it returns the URL through it.
func terminate(t *testing.T, broker testkit.AMQP, cfg *tls.Config) *url.URL {
	t.Helper()
	u, err := url.Parse(broker.URL)
	require.NoError(t, err)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", u.Host)
			if err != nil {
				_ = near.Close()
				continue
			}
			go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
			go func() { _, _ = io.Copy(near, far); _ = near.Close() }()
		}
	}()
	through := *u
	through.Scheme, through.Host = "amqps", listener.Addr().String()
	return &through
}

// Publishing, confirms, returns and consuming work through TLS, whether the options or the URL say whom to trust.
func TestTLS(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	pair, cert, key := certificate(t)
	pool := x509.NewCertPool()
	pool.AddCert(pair.Leaf)
	server := terminate(t, broker, &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12,
	})
	with := func(query url.Values) string {
		u := *server
		u.RawQuery = query.Encode()
		return u.String()
	}
	for name, opts := range map[string]rabbit.Options{
		"options": {URL: server.String(), TLS: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}},
		"url":     {URL: with(url.Values{"cacertfile": {cert}, "certfile": {cert}, "keyfile": {key}, "heartbeat": {"5"}})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, opts)
			q := queue(t, conn, quorum())
			p := publisher(t, conn, rabbit.PublisherOptions{})
			for i := range 200 {
				require.NoError(t, p.Publish(t.Context(), "", q, amqp.Publishing{Body: make([]byte, 1000)}, i))
			}
			for _, r := range collect(t, p, 200) {
				require.Equal(t, rabbit.Confirmed, r.Outcome)
			}
			var returned *rabbit.ReturnedError
			require.ErrorAs(t, p.PublishConfirmed(t.Context(), "", "nowhere", amqp.Publishing{}), &returned)
			require.NoError(t, p.Close(t.Context()))
			require.NoError(t, conn.Close())
		})
	}
	for name, c := range map[string]struct {
		opts rabbit.Options
		says string
	}{
		"unknown authority":    {rabbit.Options{URL: server.String()}, "unknown authority"},
		"no client's own":      {rabbit.Options{URL: with(url.Values{"cacertfile": {cert}})}, "certificate required"},
		"missing authorities":  {rabbit.Options{URL: with(url.Values{"cacertfile": {cert + ".gone"}})}, "ca_file cannot be read: open "},
		"no authorities in it": {rabbit.Options{URL: with(url.Values{"cacertfile": {key}})}, "holds no certificate"},
		"missing key":          {rabbit.Options{URL: with(url.Values{"cacertfile": {cert}, "certfile": {cert}, "keyfile": {key + ".gone"}})}, "key_file cannot be read: open "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.opts.Role = "test"
			_, err := rabbit.Dial(t.Context(), c.opts)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// A handshake that the server never answers ends with the context.
func TestTLSHandshakeIsBounded(t *testing.T) {
	t.Parallel()
	near, _ := net.Listen("tcp", "127.0.0.1:0")
	t.Cleanup(func() { _ = near.Close() })
	within(t, 5*time.Second, func() {
		_, err := rabbit.Dial(t.Context(), rabbit.Options{URL: "amqps://u:p@" + near.Addr().String(), Role: "test", DialTimeout: 200 * time.Millisecond})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}
