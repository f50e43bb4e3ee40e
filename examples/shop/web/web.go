// Package web holds what the HTTP sides of the shop's services share: who asks, how bodies are read and written, and what
// the policies are told of a call.
package web

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// HeaderTenant names the shop that asks. Between services it is believed; towards the world it would come from a token.
const HeaderTenant = "X-Tenant-Id"

// plain is what identifiers of tenants, orders, items, keys and cards may look like.
var plain = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$`)

// Plain tells whether s can be an identifier: 1 to 64 plain characters.
func Plain(s string) bool { return plain.MatchString(s) }

// Tenant names the caller of a request: one, for of two a proxy may have checked the other.
func Tenant(r *http.Request) (string, error) {
	tenants := r.Header.Values(HeaderTenant)
	if len(tenants) != 1 || !Plain(tenants[0]) {
		return "", Invalid(fmt.Errorf("%s must be there once, with 1 to 64 plain characters", HeaderTenant))
	}
	return tenants[0], nil
}

// Invalid is a refusal that tells all that is wrong; nothing in err may be internal.
func Invalid(err error) error {
	return &httpserver.Problem{Code: resilience.CodeInvalidRequest, Detail: err.Error()}
}

// NotFound is a refusal that does not tell what is another tenant's from what is not there.
func NotFound(what string) error {
	return &httpserver.Problem{Code: resilience.CodeNotFound, Detail: "There is no such " + what + "."}
}

// Path is a part of a request's path that is an identifier. What can be none is not there: it is not asked for, for a database that
// cannot even read it would fail, and a failure counts against the service.
func Path(r *http.Request, name, what string) (string, error) {
	value := r.PathValue(name)
	if !Plain(value) {
		return "", NotFound(what)
	}
	return value, nil
}

// SKUs are the items that a request asks for, each as sku=.
func SKUs(r *http.Request, most int) ([]string, error) {
	skus := r.URL.Query()["sku"]
	if len(skus) == 0 || len(skus) > most || slices.ContainsFunc(skus, func(sku string) bool { return !Plain(sku) }) {
		return nil, Invalid(fmt.Errorf("ask for 1 to %d items, each as sku= with 1 to 64 plain characters", most))
	}
	return skus, nil
}

// Decode reads a request's body: one value, in which nothing may be unknown, and nothing after it.
func Decode(r *http.Request, into any) error {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, end := decoder.Token(); end != io.EOF {
			err = cmp.Or(end, errors.New("something follows the value"))
		}
	}
	if err != nil {
		return &httpserver.Problem{Code: resilience.CodeInvalidRequest, Detail: "The body is not the JSON that is expected here.", Err: err}
	}
	return nil
}

// CheckKey demands that a request is sent with the one idempotency key that it can have.
func CheckKey(r *http.Request, want string) error {
	switch keys := r.Header.Values(httpclient.HeaderKey); {
	case len(keys) == 1 && strings.Trim(keys[0], `"`) == want:
		return nil
	case len(keys) == 0 || len(keys) == 1 && strings.Trim(keys[0], `"`) == "":
		return &httpserver.Problem{Code: resilience.CodeIdempotencyKeyMissing}
	}
	return Invalid(errors.New("there must be one Idempotency-Key, and it must be " + want))
}

// Write runs do in a transaction. A commit that was not answered is neither success nor failure, and is told as such: 504, not the 503
// that says that nothing has happened. Only what PostgreSQL says to have rolled back has not.
func Write(ctx context.Context, pool *pgxpool.Pool, do func(tx pgx.Tx) error) error {
	committing := false
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		err := do(tx)
		committing = err == nil
		return err
	})
	if err == nil || !committing {
		return err
	}
	switch state := resilience.SQLStateOf(err); {
	case strings.HasPrefix(state, "23"), state == "40001", state == "40P01":
		return err
	}
	return &httpserver.Problem{
		Code: resilience.CodeDeadlineExceeded, Detail: "Whether this was done is not known. Ask, or send it again with the same key.", Err: err,
	}
}

// JSON answers with a value.
func JSON(w http.ResponseWriter, status int, value any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(value)
}

type recoveryKey struct{}

// Recovering marks the calls under ctx as ones that repair: they may use the places that a bulkhead keeps back for that.
func Recovering(ctx context.Context) context.Context {
	return context.WithValue(ctx, recoveryKey{}, true)
}

// Describe tells a policy on whose behalf a request is made, and whether it repairs.
func Describe(r *http.Request, c *policy.Call) {
	c.Tenant = r.Header.Get(HeaderTenant)
	c.Recovery, _ = r.Context().Value(recoveryKey{}).(bool)
}

// Refusal is the problem with which a service has answered.
type Refusal struct {
	Code   resilience.Code `json:"code"`
	Reason string          `json:"reason"`
	SKU    string          `json:"sku"`
}

// RefusalOf returns what a service has decided against a call; false when it has not answered.
func RefusalOf(err error) (refusal Refusal, ok bool) {
	answered, ok := errors.AsType[*httpclient.ResponseError](err)
	if !ok {
		return Refusal{}, false
	}
	_ = json.Unmarshal(answered.Body, &refusal) // a body that is none has no code
	return refusal, true
}
