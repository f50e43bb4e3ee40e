package inventory

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
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
	return c.call(ctx, call{
		op: "reserve stock", method: http.MethodPost, path: "/v1/reservations", key: ref.OrderID, body: request{OrderID: ref.OrderID, Lines: lines},
		ends: []string{StatusActive, StatusCommitted},
	}, ref)
}

// Reservation asks what is held for an order and changes nothing. [ErrUnknown] may change while a request is under way.
func (c *Client) Reservation(ctx context.Context, ref event.Ref) (Reservation, error) {
	return c.call(ctx, call{
		op: "ask for reservation", method: http.MethodGet, path: "/v1/reservations/" + url.PathEscape(ref.OrderID),
		ends: []string{StatusActive, StatusCommitted, StatusExpired, StatusReleased, StatusRejected},
	}, ref)
}

// Release gives back what is held for an order, once, and sees to it that nothing is held for it later. Errors: [ErrCommitted],
// or the policy's.
func (c *Client) Release(ctx context.Context, ref event.Ref, reason string) (Reservation, error) {
	return c.call(ctx, call{
		op: "release stock", method: http.MethodPost, path: "/v1/reservations/" + url.PathEscape(ref.OrderID) + "/release", key: ReleaseKey(ref.OrderID),
		body: map[string]string{"reason": reason}, ends: []string{StatusReleased, StatusRejected},
	}, ref)
}

// call is a request, and the statuses that an answer to it can have. What says neither the order nor one of them is no answer.
type call struct {
	op, method, path, key string
	body                  any
	ends                  []string
}

func (c *Client) call(ctx context.Context, call call, ref event.Ref) (got Reservation, err error) {
	body := []byte(nil)
	if call.body != nil {
		if body, err = json.Marshal(call.body); err != nil {
			return got, fmt.Errorf("%s: %w", call.op, err)
		}
	}
	r, err := http.NewRequestWithContext(ctx, call.method, c.base+call.path, bytes.NewReader(body))
	if err != nil {
		return got, fmt.Errorf("%s: %w", call.op, err)
	}
	r.Header.Set(web.HeaderTenant, ref.Tenant)
	if call.key != "" {
		r.Header.Set(httpclient.HeaderKey, call.key)
		r.Header.Set("Content-Type", "application/json")
	}
	if err := c.http.JSON(r, &got); err != nil {
		return got, fmt.Errorf("%s: %w", call.op, decided(err))
	}
	if got.OrderID != ref.OrderID || !slices.Contains(call.ends, got.Status) {
		return Reservation{}, fmt.Errorf("%s: the answer is about something else", call.op)
	}
	return got, nil
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
