package orders

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/surefoot-mq/surefoot/examples/shop/catalog"
	"github.com/surefoot-mq/surefoot/examples/shop/customers"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
)

// Codes of refusals.
const (
	CodeUnknownItem     resilience.Code = event.ReasonUnknownItem
	CodeUnknownCustomer resilience.Code = "UNKNOWN_CUSTOMER"
)

// Catalog knows prices. It and Customers are asked at the same time; each bounds its own.
type Catalog interface {
	Items(ctx context.Context, skus []string) (map[string]catalog.Item, error)
}

// Customers knows who orders.
type Customers interface {
	Customer(ctx context.Context, tenant, id string) (event.Customer, error)
}

// APIOptions say what the service's API works with.
type APIOptions struct {
	// Pool, Store, Catalog and Customers are required.
	Pool      *pgxpool.Pool
	Store     *idempotency.Store
	Catalog   Catalog
	Customers Customers
	// Inventory and Payments are asked by orders with "checkout": "sync". Default: there are none, and such orders are refused.
	Inventory Inventory
	Payments  Payments
	// Checkout is the budget of reserving and authorising; the time of the request is another. Default: 10 s.
	Checkout time.Duration
}

// API takes orders over HTTP and tells what became of them.
type API struct {
	service *Service
	options APIOptions
}

// API returns the service's API.
func (s *Service) API(o APIOptions) *API {
	o.Checkout = cmp.Or(o.Checkout, 10*time.Second)
	return &API{s, o}
}

// Routes registers the API's requests.
func (a *API) Routes(mux *http.ServeMux) {
	mux.Handle("POST /v1/orders", a.options.Store.HandleSteps(idempotency.Steps{Prepare: a.prepare, Ask: a.ask, Check: a.check}))
	mux.Handle("GET /v1/orders/{id}", httpserver.Handler(a.order))
}

// Tenant names the caller of a request. A shop in the world would take it from a token.
func Tenant(r *http.Request) (string, error) { return web.Tenant(r) }

// request is the body of POST /v1/orders. Prices are the catalog's.
type request struct {
	CustomerID string        `json:"customerId"`
	Lines      []requestLine `json:"lines"`
	Card       string        `json:"card"`
	Note       string        `json:"note"`
	Checkout   string        `json:"checkout"`
}

type requestLine struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
}

// prepare asks for prices and customer, before there is a transaction to be held by that. An order whose prices are not known
// is refused: there is no half order.
func (a *API) prepare(ctx context.Context, r *http.Request) (idempotency.Handler, error) {
	var in request
	if err := web.Decode(r, &in); err != nil {
		return nil, err
	}
	key, _ := idempotency.KeyFrom(ctx)
	o, err := a.complete(ctx, key, in)
	if err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, web.Invalid(err)
	}
	return func(ctx context.Context, tx pgx.Tx, _ *http.Request) (idempotency.Answer, error) {
		return a.submit(ctx, tx, o)
	}, nil
}

// complete makes an order of what was asked for, what it costs, and who asks.
func (a *API) complete(ctx context.Context, key idempotency.Key, in request) (Order, error) {
	o := Order{Tenant: key.Caller, IdempotencyKey: key.Key, Card: in.Card, Note: in.Note, Checkout: in.Checkout}
	if err := in.check(); err != nil {
		return o, err
	}
	if in.Checkout == CheckoutSync && (a.options.Inventory == nil || a.options.Payments == nil) {
		return o, web.Invalid(fmt.Errorf("checkout %q is not offered here", CheckoutSync))
	}
	var items map[string]catalog.Item
	group, each := errgroup.WithContext(ctx)
	group.Go(func() (err error) { items, err = a.options.Catalog.Items(each, in.skus()); return err })
	group.Go(func() (err error) {
		o.Customer, err = a.options.Customers.Customer(each, o.Tenant, in.CustomerID)
		return err
	})
	err := group.Wait()
	if errors.Is(err, customers.ErrUnknown) {
		return o, &httpserver.Problem{Code: CodeUnknownCustomer, Status: http.StatusUnprocessableEntity, Detail: "There is no such customer."}
	}
	if err != nil {
		return o, err
	}
	return o, o.price(in.Lines, items)
}

// check bounds what is passed on to others.
func (in request) check() error {
	if n := len(in.Lines); n == 0 || n > MaxLines {
		return web.Invalid(fmt.Errorf("an order has 1 to %d lines, not %d", MaxLines, n))
	}
	if !web.Plain(in.CustomerID) {
		return web.Invalid(errors.New("customerId must be 1 to 64 plain characters"))
	}
	for i, line := range in.Lines {
		if !web.Plain(line.SKU) {
			return web.Invalid(fmt.Errorf("lines[%d].sku must be 1 to 64 plain characters", i))
		}
	}
	return nil
}

func (in request) skus() []string {
	skus := make([]string, len(in.Lines))
	for i, line := range in.Lines {
		skus[i] = line.SKU
	}
	return skus
}

// price fills in what the catalog says.
func (o *Order) price(lines []requestLine, items map[string]catalog.Item) error {
	for _, line := range lines {
		item, known := items[line.SKU]
		if !known {
			return &httpserver.Problem{
				Code: CodeUnknownItem, Status: http.StatusUnprocessableEntity, Detail: "There is no such item.",
				Members: map[string]any{"sku": line.SKU},
			}
		}
		if o.Currency != "" && o.Currency != item.Currency {
			return web.Invalid(errors.New("an order has one currency"))
		}
		o.Currency = item.Currency
		o.Lines = append(o.Lines, event.Line{SKU: item.SKU, Name: item.Name, Quantity: line.Quantity, UnitPriceCents: item.UnitPriceCents})
	}
	return nil
}

// submit is the order, its event and its answer, together.
func (a *API) submit(ctx context.Context, tx pgx.Tx, o Order) (idempotency.Answer, error) {
	submitted, err := a.service.Submit(ctx, tx, o)
	if _, reused := errors.AsType[*KeyReusedError](err); reused {
		return idempotency.Answer{}, &httpserver.Problem{Code: resilience.CodeIdempotencyKeyReused, Err: err}
	}
	if err != nil {
		return idempotency.Answer{}, err
	}
	if o.Checkout == CheckoutSync {
		now, err := a.service.taken(ctx, tx, submitted.ID)
		return now.answer(nil), err // until the services have answered
	}
	answer := idempotency.JSON(http.StatusAccepted, map[string]any{
		"orderId": submitted.ID, "status": viewPending, "totalCents": o.TotalCents(), "currency": o.Currency,
	})
	answer.Header.Set("Location", "/v1/orders/"+submitted.ID)
	return answer, nil
}
