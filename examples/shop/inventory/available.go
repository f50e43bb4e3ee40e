package inventory

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/examples/shop/store"
)

const availableSQL store.SQL = `SELECT sku, available FROM @schema@.stock WHERE sku = ANY ($1)`

// Stock reads what is there, without promising it to anybody. It is safe for concurrent use.
type Stock struct {
	pool *pgxpool.Pool
	sql  string
}

// Stock returns the service's stock as the pool's database has it.
func (s *Service) Stock(pool *pgxpool.Pool) *Stock { return &Stock{pool, availableSQL.In(s.schema)} }

// Available returns how many there are of those of the items that are kept, by SKU.
func (s *Stock) Available(ctx context.Context, skus []string) (map[string]int, error) {
	rows, _ := s.pool.Query(ctx, s.sql, skus) // its error is that of the rows
	available := map[string]int{}
	var sku string
	var n int
	if _, err := pgx.ForEachRow(rows, []any{&sku, &n}, func() error { available[sku] = n; return nil }); err != nil {
		return nil, fmt.Errorf("read stock: %w", err)
	}
	return available, nil
}
