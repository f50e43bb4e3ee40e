// Package storefront shows items with their price and stock:
//
//	GET /v1/storefront?sku=tea-01&sku=cup-02
//
// What one of its sources does not know at the moment is left out, and the answer says that it is partial: a page without
// prices is better than no page. An order is not taken that way.
package storefront

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/examples/shop/catalog"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// perClient is what a client may ask for.
var perClient = httpserver.Rate{Requests: 300, Per: time.Minute}

// Catalog knows names and prices.
type Catalog interface {
	Items(ctx context.Context, skus []string) (map[string]catalog.Item, error)
}

// Stock knows what is there.
type Stock interface {
	Available(ctx context.Context, skus []string) (map[string]int, error)
}

// Storefront answers from its sources. It is safe for concurrent use.
type Storefront struct {
	catalog Catalog
	stock   Stock
	limiter *httpserver.Limiter
}

// New returns a storefront. It does no I/O. A zero rate is 300 requests a minute for each client.
func New(c Catalog, s Stock, rate httpserver.Rate) (*Storefront, error) {
	if rate.Requests == 0 {
		rate.Requests, rate.Per = perClient.Requests, perClient.Per
	}
	limiter, err := httpserver.NewLimiter(rate)
	if err != nil {
		return nil, fmt.Errorf("storefront: %w", err)
	}
	return &Storefront{c, s, limiter}, nil
}

// Routes registers the storefront's request.
func (s *Storefront) Routes(mux *http.ServeMux) {
	mux.Handle("GET /v1/storefront", s.limiter.Wrap(httpserver.Handler(s.show)))
}

// page is the answer.
type page struct {
	// Partial says that something is missing that may be there later.
	Partial bool     `json:"partial"`
	Missing []string `json:"missing,omitempty"`
	Items   []item   `json:"items"`
}

// item has no price and no name, or no stock, while that is not known.
type item struct {
	SKU            string `json:"sku"`
	Name           string `json:"name,omitempty"`
	UnitPriceCents *int64 `json:"unitPriceCents,omitempty"`
	Currency       string `json:"currency,omitempty"`
	Available      *int   `json:"available,omitempty"`
}

func (s *Storefront) show(w http.ResponseWriter, r *http.Request) error {
	skus, err := web.SKUs(r, catalog.MaxItems)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	var items map[string]catalog.Item
	var stock map[string]int
	var noItems, noStock error
	all.Go(func() { items, noItems = s.catalog.Items(r.Context(), skus) })
	all.Go(func() { stock, noStock = s.stock.Available(r.Context(), skus) })
	all.Wait()
	if noItems != nil && noStock != nil {
		return noItems
	}
	p := page{Items: []item{}}
	p.lacks("catalog", noItems)
	p.lacks("stock", noStock)
	for _, sku := range skus {
		p.add(sku, items, stock)
	}
	w.Header().Set("Content-Type", "application/json")
	if p.Partial {
		w.Header().Set("Cache-Control", "no-store") // it may be whole the next time
	}
	return json.NewEncoder(w).Encode(p)
}

func (p *page) lacks(source string, err error) {
	if err != nil {
		p.Partial, p.Missing = true, append(p.Missing, source)
	}
}

// add leaves out what neither knows.
func (p *page) add(sku string, items map[string]catalog.Item, stock map[string]int) {
	shown := item{SKU: sku}
	priced, known := items[sku]
	if known {
		shown.Name, shown.UnitPriceCents, shown.Currency = priced.Name, &priced.UnitPriceCents, priced.Currency
	}
	available, stored := stock[sku]
	if stored {
		shown.Available = &available
	}
	if known || stored {
		p.Items = append(p.Items, shown)
	}
}
