// Package customers knows who orders. It answers over HTTP, to each tenant about its own customers:
//
//	GET /v1/customers/{id}     X-Tenant-Id: alpine
package customers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// Name of the service and of its schema.
const Name = "customers"

// HeaderTenant names the shop that asks.
const HeaderTenant = web.HeaderTenant

// Tables of the service.
const Tables store.SQL = `
CREATE TABLE IF NOT EXISTS @schema@.customers (
    tenant text NOT NULL,
    id     text NOT NULL,
    name   text NOT NULL,
    email  text NOT NULL,
    PRIMARY KEY (tenant, id)
);`

// Customer is who can order.
type Customer struct {
	Tenant, ID string
	event.Customer
}

// ErrUnknown says that the tenant has no such customer.
var ErrUnknown = errors.New("unknown customer")

// Service is the customers service. It is safe for concurrent use.
type Service struct {
	pool   *pgxpool.Pool
	schema string
}

// New returns the service. It does no I/O. Prefix "" is "shop".
func New(pool *pgxpool.Pool, prefix string) (*Service, error) {
	if err := store.CheckPrefix(prefix); err != nil {
		return nil, fmt.Errorf("customers: %w", err)
	}
	return &Service{pool: pool, schema: store.Schema(prefix, Name)}, nil
}

// Schema is the service's own.
func (s *Service) Schema() string { return s.schema }

const (
	seedSQL store.SQL = `
INSERT INTO @schema@.customers (tenant, id, name, email) SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])
ON CONFLICT (tenant, id) DO NOTHING`

	customerSQL store.SQL = `SELECT name, email FROM @schema@.customers WHERE tenant = $1 AND id = $2`
)

// Seed adds customers. One who is there already stays as is.
func (s *Service) Seed(ctx context.Context, tx pgx.Tx, all []Customer) error {
	var tenants, ids, names, emails []string
	for _, c := range all {
		tenants, ids = append(tenants, c.Tenant), append(ids, c.ID)
		names, emails = append(names, c.Name), append(emails, c.Email)
	}
	if _, err := tx.Exec(ctx, seedSQL.In(s.schema), tenants, ids, names, emails); err != nil {
		return fmt.Errorf("seed customers: %w", err)
	}
	return nil
}

const eraseSQL store.SQL = `DELETE FROM @schema@.customers WHERE tenant = $1`

// Erase removes everything of a tenant.
func (s *Service) Erase(ctx context.Context, tx pgx.Tx, tenant string) error {
	if _, err := tx.Exec(ctx, eraseSQL.In(s.schema), tenant); err != nil {
		return fmt.Errorf("erase customers: %w", err)
	}
	return nil
}

// Routes registers the service's requests.
func (s *Service) Routes(mux *http.ServeMux) {
	mux.Handle("GET /v1/customers/{id}", httpserver.Handler(s.customer))
}

func (s *Service) customer(w http.ResponseWriter, r *http.Request) error {
	tenant, err := web.Tenant(r)
	if err != nil {
		return err
	}
	id, err := web.Path(r, "id", "customer")
	if err != nil {
		return err
	}
	var c event.Customer
	err = s.pool.QueryRow(r.Context(), customerSQL.In(s.schema), tenant, id).Scan(&c.Name, &c.Email)
	if errors.Is(err, pgx.ErrNoRows) {
		return web.NotFound("customer")
	}
	if err != nil {
		return fmt.Errorf("read customer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	return json.NewEncoder(w).Encode(c)
}

// Client asks the service. It is safe for concurrent use.
type Client struct {
	base string
	http *httpclient.Client
}

// NewClient returns a client for the service at a URL.
func NewClient(base string, client *httpclient.Client) *Client {
	return &Client{base: strings.TrimSuffix(base, "/"), http: client}
}

// Customer returns a tenant's customer, or [ErrUnknown].
func (c *Client) Customer(ctx context.Context, tenant, id string) (event.Customer, error) {
	var got event.Customer
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/customers/"+url.PathEscape(id), http.NoBody)
	if err != nil {
		return got, fmt.Errorf("ask customers: %w", err)
	}
	r.Header.Set(HeaderTenant, tenant)
	err = c.http.JSON(r, &got)
	if refusal, ok := web.RefusalOf(err); ok && refusal.Code == resilience.CodeNotFound { // and not a path that the server does not have
		return got, ErrUnknown
	}
	if err == nil && got.Name == "" {
		err = errors.New("the answer is about something else")
	}
	if err != nil {
		return got, fmt.Errorf("ask customers: %w", err)
	}
	return got, nil
}
