package docs_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/catalog"
	"github.com/surefoot-mq/surefoot/examples/shop/customers"
	"github.com/surefoot-mq/surefoot/examples/shop/inventory"
	"github.com/surefoot-mq/surefoot/examples/shop/payments"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/resilience"
)

// The example of docs/resilience.md compiles, inside a function that declares what it takes for granted.
func TestTheResilienceExampleCompiles(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("resilience.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 1)
	program := `package main

import (
	"context"
	"io"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func main() { _ = reserve }

func reserve(ctx context.Context, logger zerolog.Logger, registry prometheus.Registerer, pool *pgxpool.Pool, host, orderID string, body io.Reader) error {
	var reservation struct{ ID string }
` + blocks[0][1] + `	return nil
}
`
	compiles(t, program)
}

// The limits that the document recommends are valid, and do what they seem to.
func TestTheLimitsOfTheShopAreSound(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("resilience.md")
	require.NoError(t, err)
	yaml := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindStringSubmatch(string(text))[1]
	c, err := config.Load(config.Sources{Path: "resilience.md", ReadFile: func(string) ([]byte, error) { return []byte(yaml), nil }})
	require.NoError(t, err)
	limits := shop.DefaultLimits()
	of := map[string]resilience.Settings{
		catalog.Name: limits.Catalog, customers.Name: limits.Customers, inventory.Name: limits.Inventory, payments.Name: limits.Payments,
		shop.ProviderName: limits.Provider, shop.MailName: limits.Mail,
	}
	require.Len(t, c.Dependencies, len(of))
	for name, settings := range c.Dependencies {
		require.Empty(t, settings.Warnings(), name)
		require.Equal(t, of[name].WithDefaults(), settings.WithDefaults(), "docs/resilience.md has other limits of %s than the shop", name)
	}
}
