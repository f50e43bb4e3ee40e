package listener_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/listener"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const patience = 10 * time.Second

// serve answers requests with ok.
func serve(t *testing.T, o listener.Options) (addr string) {
	t.Helper()
	o.Address, o.Name = "127.0.0.1:0", "test"
	opened, err := listener.Listen(t.Context(), o)
	require.NoError(t, err)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }), ErrorLog: listener.ErrorLog(o.Logger),
		ReadHeaderTimeout: patience,
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(opened) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	})
	return opened.Addr().String()
}

// connect opens a connection and says whether a request on it is answered; it stays open.
func connect(t *testing.T, addr string) (net.Conn, bool) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: a\r\n\r\n") // it may be closed already
	n, _ := conn.Read(make([]byte, 1000))
	return conn, n > 0
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		opts listener.Options
		want int
	}{
		"one host":        {listener.Options{Connections: 10, PerHost: 3}, 3},
		"all":             {listener.Options{Connections: 2, PerHost: 3}, 2},
		"a trusted proxy": {listener.Options{Connections: 5, PerHost: 3, Many: netip.MustParsePrefix("127.0.0.0/8").Contains}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := serve(t, tt.opts)
			var open []net.Conn
			for range tt.want {
				conn, answered := connect(t, addr)
				require.True(t, answered)
				open = append(open, conn)
			}
			_, answered := connect(t, addr)
			require.False(t, answered, "it is hung up on")
			require.NoError(t, open[0].Close())
			testkit.Eventually(t, patience, "the place of the one that has ended", func() bool {
				_, answered := connect(t, addr)
				return answered
			})
		})
	}
}

// Handshakes that fail, as often as somebody likes, are one line for each host.
func TestHandshakesThatFailDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t)
	pair := authority.Issue(t, testkit.Certificate{})
	var logged bytes.Buffer
	out := zerolog.SyncWriter(&logged)
	addr := serve(t, listener.Options{Connections: 10, PerHost: 10, Files: tlsfiles.Files{Cert: pair.Cert, Key: pair.Key}, Logger: zerolog.New(out)})
	for range 50 {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
		_, err = io.WriteString(conn, "this is no handshake of TLS\r\n\r\n")
		require.NoError(t, err)
		_, _ = io.Copy(io.Discard, conn) // until the server has given up
		require.NoError(t, conn.Close())
	}
	pem, err := os.ReadFile(authority.File)
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	require.True(t, trusted.AppendCertsFromPEM(pem))
	client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}}
	response, err := client.Get("https://" + addr)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	_, err = out.Write(nil) // after whatever is being written
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(logged.String(), "TLS handshake error"), logged.String())
}

// Each host is told of once a minute, with how often it was not; more hosts than are known are one.
func TestTheLogOfConnectionsIsBounded(t *testing.T) {
	t.Parallel()
	var logged bytes.Buffer
	now := time.Unix(0, 0)
	out := listener.NewErrorLog(zerolog.New(&logged), func() time.Time { return now })
	say := func(format string, args ...any) {
		_, err := fmt.Fprintf(out, format+"\n", args...)
		require.NoError(t, err)
	}
	told := func() (lines []string) {
		defer logged.Reset()
		return strings.Split(strings.TrimSpace(logged.String()), "\n")
	}
	for port := range 1000 {
		say("http: TLS handshake error from 192.0.2.1:%d: EOF", port)
		say("http: TLS handshake error from [2001:db8::1]:%d: remote error", port)
	}
	say("http: panic serving 192.0.2.1:9: something else")
	lines := told()
	require.Len(t, lines, 3, "by host, and by kind")
	require.Contains(t, lines[0], "192.0.2.1:0")
	now = now.Add(time.Minute)
	say("http: Accept error: too many open files")
	lines = told()
	require.Len(t, lines, 3)
	require.Contains(t, strings.Join(lines, "\n"), `"more":999,"message":"http: TLS handshake error from 192.0.2.1:999: EOF"`)
	now = now.Add(time.Minute)
	for host := range 10 * listener.LogHosts {
		say("http: TLS handshake error from 10.0.%d.%d:1: EOF", host/250, host%250)
	}
	require.Len(t, told(), listener.LogHosts+1)
	say("%s", strings.Repeat("long", 10_000))
	require.LessOrEqual(t, logged.Len(), 5<<10)
}

func TestWhatCannotBeListenedOn(t *testing.T) {
	t.Parallel()
	taken := serve(t, listener.Options{Connections: 1, PerHost: 1})
	_, err := listener.Listen(t.Context(), listener.Options{Address: taken, Name: "test"})
	require.ErrorContains(t, err, "listen on "+taken+" (choose another test.listen): ")
	_, err = listener.Listen(t.Context(), listener.Options{Address: "127.0.0.1:0", Name: "test", Files: tlsfiles.Files{Cert: "/no/such", Key: "/no/such"}})
	require.ErrorContains(t, err, "TLS of test.listen: cert_file cannot be read: open /no/such")
}
