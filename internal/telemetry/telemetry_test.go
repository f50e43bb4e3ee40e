package telemetry_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLoggerWritesJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	logger, err := telemetry.NewLogger(telemetry.LoggerOptions{Writer: &out, Level: "warn"})
	require.NoError(t, err)
	logger.Info().Msg("left out")
	logger.Warn().Str(telemetry.FieldEventID, "e1").Msg("deferred retry")
	var line map[string]string
	require.NoError(t, json.Unmarshal(out.Bytes(), &line), out.String())
	at, err := time.Parse(time.RFC3339, line["time"])
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, time.Minute)
	require.True(t, strings.HasSuffix(line["time"], "Z"), "times are in UTC")
	delete(line, "time")
	require.Equal(t, map[string]string{"level": "warn", "event_id": "e1", "message": "deferred retry"}, line)
}

func TestLoggerForPeople(t *testing.T) {
	t.Parallel()
	for _, plain := range []bool{true, false} {
		var out bytes.Buffer
		logger, err := telemetry.NewLogger(telemetry.LoggerOptions{Writer: &out, Pretty: true, NoColor: plain})
		require.NoError(t, err)
		logger.Debug().Msg("left out")
		logger.Info().Str("queue", "orders.saga").Msg("hello")
		require.Equal(t, plain, !strings.Contains(out.String(), "\x1b["), out.String())
		require.Contains(t, out.String(), "hello")
		require.NotContains(t, out.String(), "left out")
	}
	_, err := telemetry.NewLogger(telemetry.LoggerOptions{Level: "loud"})
	require.EqualError(t, err, `log level "loud": use trace, debug, info, warn or error`)
}

// Logs are read on terminals, and ids come from anywhere.
func TestNoLogLineSteersATerminal(t *testing.T) {
	t.Parallel()
	hostile := "\x1b[2J \x7f \u009b31m \u202e \u2028 \U000e0041 \xff \u00e9\u6ce8 \U0001f69a <b>"
	for _, pretty := range []bool{true, false} {
		var out bytes.Buffer
		logger, err := telemetry.NewLogger(telemetry.LoggerOptions{Writer: &out, Pretty: pretty, NoColor: true})
		require.NoError(t, err)
		logger.Error().Str("event_id", hostile).Err(errors.New(hostile)).Msg("poison message")
		line := strings.TrimSuffix(out.String(), "\n")
		for _, char := range line {
			require.True(t, unicode.IsPrint(char), "%U in %s", char, line)
		}
		if pretty {
			continue
		}
		var fields map[string]string
		require.NoError(t, json.Unmarshal([]byte(line), &fields))
		require.Equal(t, strings.ToValidUTF8(hostile, "\ufffd"), fields["event_id"], "to a reader of JSON nothing has changed")
	}
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	var r telemetry.Readiness
	check := func(want map[string]string) {
		t.Helper()
		ready, reasons := r.Snapshot()
		require.Equal(t, len(want) == 0, ready)
		require.Len(t, reasons, len(want))
		for part, reason := range want {
			require.Equal(t, reason, reasons[part])
		}
	}
	check(nil)
	r.Set("relay", errors.New("broker is away"))
	r.Part("consume")(errors.New("paused"))
	check(map[string]string{"relay": "broker is away", "consume": "paused"})
	r.Part("relay")(nil)
	check(map[string]string{"consume": "paused"})
	_, reasons := r.Snapshot()
	delete(reasons, "consume")
	check(map[string]string{"consume": "paused"})
	r.Drain()
	r.Set("consume", nil)
	check(map[string]string{"process": "draining"})
	r.Set("process", nil)
	check(map[string]string{"process": "draining"})
}

func TestReadinessIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var r telemetry.Readiness
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 200 {
				r.Set(strconv.Itoa(i), errors.New("x"))
				r.Snapshot()
				r.Set(strconv.Itoa(i), nil)
			}
		})
	}
	wg.Wait()
	ready, _ := r.Snapshot()
	require.True(t, ready)
}

func serve(t *testing.T, gatherer prometheus.Gatherer, logs io.Writer) *telemetry.Server {
	t.Helper()
	server, err := telemetry.Serve(t.Context(), telemetry.ServerOptions{
		Listen: "127.0.0.1:0", Readiness: new(telemetry.Readiness), Gatherer: gatherer, Logger: zerolog.New(logs),
	})
	require.NoError(t, err)
	return server
}

func TestBrokenMetricIsLoggedAndLeavesTheOthers(t *testing.T) {
	t.Parallel()
	registry := telemetry.NewRegistry("v1")
	registry.MustRegister(brokenCollector{prometheus.NewDesc("surefoot_broken", "Broken.", nil, nil)})
	var logs bytes.Buffer
	server := serve(t, registry, &logs)
	response, err := get("http://" + server.Addr() + "/metrics")
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.NoError(t, server.Close(t.Context()))
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Contains(t, string(body), "surefoot_build_info")
	require.Contains(t, logs.String(), "metrics: ")
	require.Contains(t, logs.String(), "cannot be collected")
}

func get(url string) (*http.Response, error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return client.Get(url)
}

// The probes speak TLS when there is a certificate, and one that is replaced counts.
func TestProbesOverTLS(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t)
	pair := authority.Issue(t, testkit.Certificate{Name: "before"})
	pem, err := os.ReadFile(authority.File)
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	require.True(t, trusted.AppendCertsFromPEM(pem))
	server, err := telemetry.Serve(t.Context(), telemetry.ServerOptions{
		Listen: "127.0.0.1:0", Files: tlsfiles.Files{Cert: pair.Cert, Key: pair.Key}, Readiness: new(telemetry.Readiness), Gatherer: telemetry.NewRegistry("v1"),
	})
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}}
	for _, name := range []string{"before", "after"} {
		authority.IssueInto(t, pair, testkit.Certificate{Name: name})
		for _, path := range []string{"/livez", "/readyz", "/metrics"} {
			response, err := client.Get("https://" + server.Addr() + path)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, http.StatusOK, response.StatusCode, path)
			require.Equal(t, name, response.TLS.PeerCertificates[0].Subject.CommonName)
		}
	}
	response, err := get("http://" + server.Addr() + "/metrics")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusBadRequest, response.StatusCode, "in the clear nothing is said")
	require.NoError(t, server.Close(t.Context()))
	_, err = telemetry.Serve(t.Context(), telemetry.ServerOptions{Listen: "127.0.0.1:0", Files: tlsfiles.Files{Cert: pair.Cert, Key: pair.Cert}})
	require.ErrorContains(t, err, "TLS of http.listen: cert_file "+pair.Cert)
}

type brokenCollector struct{ desc *prometheus.Desc }

func (c brokenCollector) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

func (c brokenCollector) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.NewInvalidMetric(c.desc, errors.New("cannot be collected"))
}

func TestSlowClientIsCutOff(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for a time limit of several seconds")
	}
	server := serve(t, prometheus.NewRegistry(), io.Discard)
	conn, err := net.Dial("tcp", server.Addr())
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: x\r\n") // and never the end of it
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = bufio.NewReader(conn).ReadString('\n')
	require.ErrorIs(t, err, io.EOF, "the server waits for as long as the client likes")
	require.NoError(t, server.Close(t.Context()))
}

// The address that takes connections for nothing has no more than its own probes refused.
func TestOneAddressDoesNotTakeAllProbes(t *testing.T) {
	t.Parallel()
	server := serve(t, prometheus.NewRegistry(), io.Discard)
	other := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	var taken []net.Conn
	for range 300 {
		conn, err := other.DialContext(t.Context(), "tcp", server.Addr())
		require.NoError(t, err)
		taken = append(taken, conn)
	}
	response, err := get("http://" + server.Addr() + "/livez")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	for _, conn := range taken {
		require.NoError(t, conn.Close())
	}
	require.NoError(t, server.Close(t.Context()))
	require.Equal(t, http.StatusOK, response.StatusCode)
}

func TestPoolMetricsFollowTheRules(t *testing.T) {
	t.Parallel()
	pool, err := pg.Open(t.Context(), pg.Options{URL: "postgres://ann@127.0.0.1:1/d", MaxConns: 7})
	require.NoError(t, err)
	defer pool.Close()
	pools := telemetry.NewPoolCollector()
	pools.Add("relay", pool)
	problems, err := testutil.CollectAndLint(pools)
	require.NoError(t, err)
	require.Empty(t, problems)
	require.NoError(t, testutil.CollectAndCompare(pools, strings.NewReader(`
# HELP surefoot_pool_connections PostgreSQL connections by state; max is the limit.
# TYPE surefoot_pool_connections gauge
surefoot_pool_connections{pool="relay",state="acquired"} 0
surefoot_pool_connections{pool="relay",state="constructing"} 0
surefoot_pool_connections{pool="relay",state="idle"} 0
surefoot_pool_connections{pool="relay",state="max"} 7
`), "surefoot_pool_connections"))
}
