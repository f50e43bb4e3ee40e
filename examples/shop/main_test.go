package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestHelpNamesEveryCommand(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"help"}, environment{stdout: &out}))
	for _, name := range regexp.MustCompile(`"([a-z]+)"`).FindAllStringSubmatch(`"migrate" "orders" "inventory" "payments" "notifications" "all" "api" "catalog" "customers" "provider" "mail" "submit"
		"cases" "reopen" "clean" "erase" "account" "sample"`, -1) {
		require.Contains(t, out.String(), name[1])
		err := run(t.Context(), []string{name[1], "a", "b", "c"}, environment{getenv: func(string) string { return "" }, stdout: io.Discard, stderr: io.Discard})
		require.ErrorIs(t, err, errUsage, name[1])
	}
}

// A role over HTTP tells of itself: its requests, its circuits, whether it is ready.
func TestARoleOverHTTPHasProbesAndMetrics(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs PostgreSQL")
	}
	db := testkit.Database(t)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := free.Addr().String()
	require.NoError(t, free.Close())
	var log bytes.Buffer
	env := environment{getenv: func(name string) string {
		if name == "SUREFOOT_DATABASE_URL" {
			return db.URL
		}
		return ""
	}, stdout: io.Discard, stderr: &log}
	flags := []string{"-prefix", db.Schema, "-schema", db.Schema}
	require.NoError(t, run(t.Context(), append([]string{"migrate"}, flags...), env))
	t.Cleanup(func() {
		for _, service := range []string{"orders", "inventory", "payments", "notifications", "catalog", "customers"} {
			_, err := db.Pool.Exec(context.WithoutCancel(t.Context()), "DROP SCHEMA "+db.Schema+"_"+service+" CASCADE")
			require.NoError(t, err)
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, append([]string{"api", "-http", at, "-catalog", "http://127.0.0.1:1"}, flags...), env)
	}()
	get := func(path string) (status int, body string) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+at+path, http.NoBody)
		require.NoError(t, err)
		r.Close = true
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, ""
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}
	testkit.Eventually(t, 10*time.Second, "the api to listen", func() bool { status, _ := get("/livez"); return status == 204 })
	status, _ := get("/readyz")
	require.Equal(t, 200, status)
	status, _ = get("/v1/storefront?sku=tea-01")
	require.Equal(t, 200, status, "in part")
	status, _ = get("/v1/storefront")
	require.Equal(t, 400, status)
	_, metrics := get("/metrics")
	for _, want := range []string{
		`surefoot_http_requests_total{route="GET /v1/storefront",status="200"} 1`, `surefoot_http_problems_total{code="INVALID_REQUEST"} 1`,
		`surefoot_http_request_seconds_count{route="GET /v1/storefront"} 2`, `circuit_breaker_state{dependency="inventory"} 0`, `surefoot_bulkhead_limit{dependency="inventory"} 20`,
	} {
		require.Contains(t, metrics, want)
	}
	require.NotContains(t, metrics, `dependency="mail"`, "no policy of what is not called")
	stop()
	require.NoError(t, <-ended, log.String())
}
