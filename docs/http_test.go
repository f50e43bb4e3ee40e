package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/resilience"
)

// The examples of docs/http.md compile, inside functions that declare what they take for granted.
func TestTheHTTPExamplesCompile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("http.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 2)
	program := `package main

import (
	"context"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

func main() { _, _ = serve, steps }

func tenantOf(r *http.Request) (string, error) { return "", nil }

func insertOrder(ctx context.Context, tx pgx.Tx, r *http.Request) (string, error) { return "", nil }

func insertStarted(ctx context.Context, tx pgx.Tx, r *http.Request) error { return nil }

func charge(ctx context.Context, key string) (string, error) { return "", nil }

func status(ctx context.Context, key string) (string, error) { return "", nil }

func finish(charge string) idempotency.Finish { return nil }

func serve(ctx context.Context, pool *pgxpool.Pool, logger zerolog.Logger, registry prometheus.Registerer) error {
` + blocks[0][1] + `}

func steps(mux *http.ServeMux, store *idempotency.Store) {
` + blocks[1][1] + `}
`
	compiles(t, program)
}

// The table of codes has each of them, with its status, and none else.
func TestTheTableOfCodesIsThatOfTheCode(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("../resilience/codes.go")
	require.NoError(t, err)
	text, err := os.ReadFile("http.md")
	require.NoError(t, err)
	codes := map[string]bool{}
	for _, found := range regexp.MustCompile(`Code = "([A-Z_]+)"`).FindAllStringSubmatch(string(source), -1) {
		codes[found[1]] = true
		row := fmt.Sprintf("| `%s` | %d", found[1], resilience.Code(found[1]).Status())
		require.Contains(t, string(text), row)
	}
	require.Greater(t, len(codes), 10)
	for _, found := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| [0-9]").FindAllStringSubmatch(string(text), -1) {
		require.True(t, codes[found[1]], "there is no code %s", found[1])
	}
}
