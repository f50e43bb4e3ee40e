// Package catalog knows what the shop sells, and at which price. It answers over HTTP:
//
//	GET /v1/items?sku=tea-01&sku=cup-02
//
// When its database is away it answers from what it read last, with Age, as long as that is fresh enough: a price is a
// low-risk read. What it does not know then it does not make up: 503.
package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// Name of the service and of its schema.
const Name = "catalog"

// Tables of the service.
const Tables store.SQL = `
CREATE TABLE IF NOT EXISTS @schema@.items (
    sku              text PRIMARY KEY,
    name             text NOT NULL,
    unit_price_cents bigint NOT NULL CHECK (unit_price_cents >= 0),
    currency         text NOT NULL
);`

// MaxItems of one request.
const MaxItems = 50

// Item is what can be ordered.
type Item struct {
	SKU            string `json:"sku"`
	Name           string `json:"name"`
	UnitPriceCents int64  `json:"unitPriceCents"`
	Currency       string `json:"currency"`
}

// Options of the service.
type Options struct {
	// Pool of the database. Required.
	Pool *pgxpool.Pool
	// Prefix of the shop's schemas. Default: "shop".
	Prefix string
	// MaxAge is how old an answer may be when the database is away. Default: 5 min.
	MaxAge time.Duration
}

// Service is the catalog. It is safe for concurrent use.
type Service struct {
	pool   *pgxpool.Pool
	schema string
	maxAge time.Duration

	mu   sync.Mutex
	read map[string]reading // at most as many as there are items
}

type reading struct {
	item Item
	at   time.Time
}

// New returns the service. It does no I/O.
func New(o Options) (*Service, error) {
	if err := store.CheckPrefix(o.Prefix); err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	if o.Pool == nil {
		return nil, errors.New("catalog: Pool is missing")
	}
	if o.MaxAge <= 0 {
		o.MaxAge = 5 * time.Minute
	}
	return &Service{pool: o.Pool, schema: store.Schema(o.Prefix, Name), maxAge: o.MaxAge, read: map[string]reading{}}, nil
}

// Schema is the service's own.
func (s *Service) Schema() string { return s.schema }

const (
	seedSQL store.SQL = `
INSERT INTO @schema@.items (sku, name, unit_price_cents, currency) SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[])
ON CONFLICT (sku) DO NOTHING`

	itemsSQL store.SQL = `SELECT sku, name, unit_price_cents, currency FROM @schema@.items WHERE sku = ANY ($1)`
)

// Seed adds items. One that is there already keeps its price.
func (s *Service) Seed(ctx context.Context, tx pgx.Tx, items []Item) error {
	var skus, names, currencies []string
	var prices []int64
	for _, item := range items {
		skus, names = append(skus, item.SKU), append(names, item.Name)
		prices, currencies = append(prices, item.UnitPriceCents), append(currencies, item.Currency)
	}
	if _, err := tx.Exec(ctx, seedSQL.In(s.schema), skus, names, prices, currencies); err != nil {
		return fmt.Errorf("seed catalog: %w", err)
	}
	return nil
}

// Routes registers the service's requests.
func (s *Service) Routes(mux *http.ServeMux) {
	mux.Handle("GET /v1/items", httpserver.Handler(s.items))
}

// answer of GET /v1/items. What there is not is left out.
type answer struct {
	Items []Item `json:"items"`
}

func (s *Service) items(w http.ResponseWriter, r *http.Request) error {
	skus, err := web.SKUs(r, MaxItems)
	if err != nil {
		return err
	}
	items, err := s.fresh(r.Context(), skus)
	if err != nil {
		known, age, ok := s.remembered(skus)
		if !ok {
			return err
		}
		w.Header().Set("Age", strconv.Itoa(int(age.Seconds())))
		items = known
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(answer{items})
}

func (s *Service) fresh(ctx context.Context, skus []string) ([]Item, error) {
	at := time.Now()
	rows, _ := s.pool.Query(ctx, itemsSQL.In(s.schema), skus) // its error is that of the rows
	items, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Item])
	if err != nil {
		return nil, fmt.Errorf("read items: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, item := range items {
		s.read[item.SKU] = reading{item, at}
	}
	return items, nil
}

// remembered answers only when it has all that is asked for: it cannot tell an item that it has never read from one that does
// not exist.
func (s *Service) remembered(skus []string) (items []Item, oldest time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sku := range skus {
		r := s.read[sku]
		age := time.Since(r.at) // of what was never read: longer than any limit
		if age > s.maxAge {
			return nil, 0, false
		}
		items, oldest = append(items, r.item), max(oldest, age)
	}
	return items, oldest, true
}
