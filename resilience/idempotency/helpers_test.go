package idempotency_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

func TestMain(m *testing.M) { testkit.Main(m) }

var errBroken = errors.New("broken")

// place is a database with a table of effects.
type place struct {
	testkit.DB
}

func newPlace(t testing.TB) place {
	t.Helper()
	p := place{testkit.Database(t)}
	_, err := p.Pool.Exec(t.Context(), `CREATE TABLE `+p.Schema+`.effects (n bigint GENERATED ALWAYS AS IDENTITY, key text NOT NULL)`)
	require.NoError(t, err)
	return p
}

// apply is a handler's effect; its answer tells which one it was.
func (p place) apply(ctx context.Context, tx pgx.Tx) (idempotency.Answer, error) {
	k, _ := idempotency.KeyFrom(ctx)
	var n int
	if err := tx.QueryRow(ctx, `INSERT INTO `+p.Schema+`.effects (key) VALUES ($1) RETURNING n`, k.Key).Scan(&n); err != nil {
		return idempotency.Answer{}, err
	}
	return idempotency.JSON(http.StatusCreated, map[string]any{"n": n, "key": k.Key}), nil
}

func (p place) handler(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
	return p.apply(ctx, tx)
}

// effects counts those of a key.
func (p place) effects(t testing.TB, key string) (n int) {
	t.Helper()
	require.NoError(t, p.Pool.QueryRow(context.WithoutCancel(t.Context()), `SELECT count(*) FROM `+p.Schema+`.effects WHERE key = $1`, key).Scan(&n))
	return n
}

func (p place) store(t testing.TB, change ...func(*idempotency.Options)) *idempotency.Store {
	t.Helper()
	o := idempotency.Options{
		Pool: p.Pool, Schema: p.Schema, Logger: testkit.Logger(t),
		Caller: func(r *http.Request) (string, error) { return r.Header.Get("Tenant"), nil },
	}
	for _, c := range change {
		c(&o)
	}
	s, err := idempotency.New(o)
	require.NoError(t, err)
	return s
}

// serve serves a handler over real TCP, with all that a server puts around it.
func serve(t testing.TB, handler http.Handler) *httptest.Server {
	t.Helper()
	s, err := httpserver.New(httpserver.Options{Handler: handler, Logger: testkit.Logger(t)})
	require.NoError(t, err)
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return server
}

// answer is what a client sees. Status 0: it saw none.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask posts body with a key, as the tenant "alpine".
func ask(ctx context.Context, server *httptest.Server, key, body string) answer {
	return askAs(ctx, server.Client(), server.URL, "alpine", key, body)
}

func askAs(ctx context.Context, client *http.Client, url, tenant, key, body string) answer {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return answer{body: err.Error()}
	}
	request.Header.Set("Tenant", tenant)
	if key != "" {
		request.Header.Set(idempotency.HeaderKey, key)
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{body: err.Error()}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{body: err.Error()}
	}
	return answer{response.StatusCode, response.Header, string(text)}
}

func (a answer) replayed() bool { return a.header.Get(idempotency.HeaderReplayed) == "true" }

func (a answer) isProblem(t *testing.T, status int, code resilience.Code) {
	t.Helper()
	require.Equal(t, status, a.status, a.body)
	var members struct{ Code resilience.Code }
	require.NoError(t, json.Unmarshal([]byte(a.body), &members), a.body)
	require.Equal(t, code, members.Code)
}

// through is a pool whose connections go through a network that can fail.
func through(t *testing.T, p place) (*testkit.FaultyNetwork, *pgxpool.Pool) {
	t.Helper()
	network := testkit.Proxy(t, p.URL)
	config, err := pgxpool.ParseConfig(network.Through(t, p.URL))
	require.NoError(t, err)
	config.MaxConns, config.ConnConfig.ConnectTimeout = 4, 2*time.Second
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return network, pool
}

// direct asks without a network.
func direct(ctx context.Context, handler http.Handler, key string, header ...string) answer {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", http.NoBody)
	r.Header.Set("Tenant", "alpine")
	r.Header.Set(idempotency.HeaderKey, key)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, r)
	return answer{recorder.Code, recorder.Header(), recorder.Body.String()}
}
