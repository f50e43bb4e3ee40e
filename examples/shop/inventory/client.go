package inventory

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
)

// Client asks the service. It is safe for concurrent use.
type Client struct {
	base string
	http *httpclient.Client
}

// NewClient returns a client for the service at a URL.
func NewClient(base string, client *httpclient.Client) *Client {
	return &Client{base: strings.TrimSuffix(base, "/"), http: client}
}

// Reserve holds every line for an order, or none; the same again is the same reservation. Errors: a [*RejectedError] or
// [ErrOther], which are answers; else the policy's, which says what the call may have done.
func (c *Client) Reserve(ctx context.Context, ref event.Ref, lines []Line) (Reservation, error) {
	var got Reservation
	err := c.call(ctx, "reserve stock", http.MethodPost, "/v1/reservations", ref.Tenant, ref.OrderID, request{OrderID: ref.OrderID, Lines: lines}, &got)
	return got, err
}

// Reservation asks what is held for an order and changes nothing. [ErrUnknown] may change while a request is under way.
func (c *Client) Reservation(ctx context.Context, ref event.Ref) (Reservation, error) {
	var got Reservation
	err := c.call(ctx, "ask for reservation", http.MethodGet, "/v1/reservations/"+url.PathEscape(ref.OrderID), ref.Tenant, "", nil, &got)
	return got, err
}

// Release gives back what is held for an order, once, and sees to it that nothing is held for it later. Errors: [ErrCommitted],
// or the policy's.
func (c *Client) Release(ctx context.Context, ref event.Ref, reason string) (Reservation, error) {
	var got Reservation
	err := c.call(ctx, "release stock", http.MethodPost, "/v1/reservations/"+url.PathEscape(ref.OrderID)+"/release", ref.Tenant, ReleaseKey(ref.OrderID),
		map[string]string{"reason": reason}, &got)
	return got, err
}

func (c *Client) call(ctx context.Context, op, method, path, tenant, key string, in, out any) error {
	body := []byte(nil)
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	r.Header.Set(web.HeaderTenant, tenant)
	if key != "" {
		r.Header.Set(httpclient.HeaderKey, key)
		r.Header.Set("Content-Type", "application/json")
	}
	if err := c.http.JSON(r, out); err != nil {
		return fmt.Errorf("%s: %w", op, decided(err))
	}
	return nil
}

// answers are the codes that stand for errors of this package.
var answers = map[resilience.Code]error{CodeCommitted: ErrCommitted, resilience.CodeNotFound: ErrUnknown, resilience.CodeIdempotencyKeyReused: ErrOther}

// decided turns an answer into the error that the service gave; what is no answer stays as it is.
func decided(err error) error {
	refusal, ok := web.RefusalOf(err)
	if !ok {
		return err
	}
	if refusal.Code == CodeOutOfStock || refusal.Code == CodeUnknownItem || refusal.Code == CodeReleased {
		return &RejectedError{Reason: refusal.Reason, SKU: refusal.SKU}
	}
	if answer, known := answers[refusal.Code]; known {
		return answer
	}
	return err
}
