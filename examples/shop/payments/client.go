package payments

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/web"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/fallback"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
)

// Outcomes that are certain.
var (
	// ErrDeclined: the card was declined; nothing is charged for this order, ever.
	ErrDeclined = errors.New("the card was declined")
	// ErrReversed: the payment was given up, and what was charged is paid back.
	ErrReversed = errors.New("the payment was given up")
)

// PendingError says that nobody knows yet whether an order is paid. That is neither success nor failure: ask again.
type PendingError struct{ Answer fallback.Pending }

// Error implements error.
func (e *PendingError) Error() string { return "payment is not confirmed yet: " + e.Answer.Reason }

// Client asks the service. It is safe for concurrent use.
type Client struct {
	base string
	http *httpclient.Client
}

// NewClient returns a client for the service at a URL.
func NewClient(base string, client *httpclient.Client) *Client {
	return &Client{base: strings.TrimSuffix(base, "/"), http: client}
}

// Authorise charges for an order, once, however often it is called; it returns the provider's id of the charge. Errors:
// [ErrDeclined], [ErrReversed], [ErrOther], which are answers; a [*PendingError]; else the policy's.
func (c *Client) Authorise(ctx context.Context, ref event.Ref, p event.Payment) (chargeID string, err error) {
	body, err := json.Marshal(request{OrderID: ref.OrderID, Payment: p})
	if err != nil {
		return "", fmt.Errorf("encode payment: %w", err)
	}
	return c.call(ctx, "authorise payment", http.MethodPost, "/v1/payments", ref, body)
}

// Payment asks what is known of an order's payment: the provider's id of its charge. Errors are those of Authorise, and
// [ErrUnknown] when no payment was begun.
func (c *Client) Payment(ctx context.Context, ref event.Ref) (chargeID string, err error) {
	return c.call(ctx, "ask for payment", http.MethodGet, "/v1/payments/"+url.PathEscape(ref.OrderID), ref, nil)
}

func (c *Client) call(ctx context.Context, op, method, path string, ref event.Ref, body []byte) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return "", fmt.Errorf("%s: %w", op, err)
	}
	r.Header.Set(web.HeaderTenant, ref.Tenant)
	if method == http.MethodPost {
		r.Header.Set(httpclient.HeaderKey, ref.OrderID)
		r.Header.Set("Content-Type", "application/json")
	}
	var got answer
	if err := c.http.JSON(r, &got); err != nil {
		return "", fmt.Errorf("%s: %w", op, decided(err))
	}
	if got.IdempotencyKey != ref.OrderID {
		return "", fmt.Errorf("%s: the answer is about something else", op)
	}
	switch got.PaymentStatus {
	case paymentConfirmed:
		if got.TransactionID == nil {
			return "", fmt.Errorf("%s: confirmed without a transaction", op)
		}
		return *got.TransactionID, nil
	case paymentDeclined:
		return "", ErrDeclined
	case paymentReversed:
		return "", ErrReversed
	case paymentPending:
		return "", &PendingError{got.Pending}
	}
	return "", fmt.Errorf("%s: the answer has no status that there is", op)
}

// answers are the codes that stand for errors of this package.
var answers = map[resilience.Code]error{
	CodeDeclined: ErrDeclined, CodeReversed: ErrReversed, resilience.CodeNotFound: ErrUnknown, resilience.CodeIdempotencyKeyReused: ErrOther,
}

// decided turns an answer into the error that the service gave; what is no answer stays as it is.
func decided(err error) error {
	refusal, ok := web.RefusalOf(err)
	if answer, known := answers[refusal.Code]; ok && known {
		return answer
	}
	return err
}
