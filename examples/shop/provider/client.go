package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"github.com/surefoot-mq/surefoot/examples/shop/web"
	"github.com/surefoot-mq/surefoot/resilience"
)

// ClientOptions of a client.
type ClientOptions struct {
	// URL of the provider. Required.
	URL string
	// Timeout of one request. Default: 5 s.
	Timeout time.Duration
	// Transport makes the requests. Default: one of the client's own.
	Transport *http.Transport
}

// Client asks the provider. It makes one attempt for each call and leaves trying again to its caller, who must
// use the same key. It is safe for concurrent use.
type Client struct {
	base string
	http *http.Client
}

// Outcomes that are certain.
var (
	// ErrDeclined: the provider will never charge under this key.
	ErrDeclined = errors.New("the card was declined")
	// ErrReversed: the key was reversed before; nothing is charged under it.
	ErrReversed = errors.New("the payment was reversed before")
	// ErrUnknownKey: the provider knows nothing of the key, now.
	ErrUnknownKey = errors.New("the provider does not know this payment")
)

// UncertainError says that the request may or may not have had its effect. That is neither success nor failure:
// ask again with the same key.
type UncertainError struct {
	Op, Key string
	Err     error
}

// Error implements error.
func (e *UncertainError) Error() string {
	return fmt.Sprintf("%s: outcome unknown, to be asked again with the same key: %v", e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *UncertainError) Unwrap() error { return e.Err }

// NewClient returns a client. It does no I/O.
func NewClient(o ClientOptions) (*Client, error) {
	base, err := url.Parse(o.URL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, errors.New("payment provider: the URL must be http:// or https:// with a host")
	}
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Second
	}
	if o.Transport == nil {
		o.Transport = &http.Transport{MaxIdleConnsPerHost: 20, IdleConnTimeout: time.Minute}
	}
	return &Client{base: base.Scheme + "://" + base.Host, http: &http.Client{Timeout: o.Timeout, Transport: o.Transport}}, nil
}

// Close lets idle connections go.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Charge takes money, once for each key. Errors: [ErrDeclined], [ErrReversed], an [*UncertainError], or one that
// says that nothing happened yet.
func (c *Client) Charge(ctx context.Context, key string, req ChargeRequest) (Charge, error) {
	var charge Charge
	body, err := json.Marshal(req)
	if err != nil {
		return charge, fmt.Errorf("encode charge: %w", err)
	}
	judge := func() bool { return charge.of(key) && charge.AmountCents == req.AmountCents }
	err = c.call(ctx, call{op: "charge", method: http.MethodPost, path: "/charges", key: key, body: body, judge: judge}, &charge)
	return charge, err
}

// Reverse pays back what was charged under a key, or sees to it that nothing ever is. Doing it again changes
// nothing.
func (c *Client) Reverse(ctx context.Context, key string) (Reversal, error) {
	var reversal Reversal
	judge := func() bool { return reversal.of(key) }
	err := c.call(ctx, call{op: "reverse", method: http.MethodPost, path: "/reversals/" + url.PathEscape(key), key: key, judge: judge}, &reversal)
	return reversal, err
}

// Check asks what became of a key and changes nothing. [ErrUnknownKey] may change while a request is under way.
func (c *Client) Check(ctx context.Context, key string) (Charge, error) {
	var charge Charge
	judge := func() bool { return charge.of(key) }
	err := c.call(ctx, call{op: "check", method: http.MethodGet, path: "/charges/" + url.PathEscape(key), key: key, judge: judge}, &charge)
	return charge, err
}

// Ledger reads what happened at the simulator.
func (c *Client) Ledger(ctx context.Context) (Ledger, error) {
	var ledger Ledger
	err := c.call(ctx, call{op: "read ledger", method: http.MethodGet, path: "/admin/ledger", limit: 256 << 20}, &ledger)
	return ledger, err
}

// SetRules tells the simulator how to fail from now on.
func (c *Client) SetRules(ctx context.Context, rules ...Rule) error {
	body, err := json.Marshal(append([]Rule{}, rules...))
	if err != nil {
		return fmt.Errorf("encode rules: %w", err)
	}
	return c.call(ctx, call{op: "set rules", method: http.MethodPut, path: "/admin/rules", body: body}, nil)
}

type call struct {
	op, method, path, key string
	body                  []byte
	limit                 int64
	// judge tells whether the answer that was read is one to this call; nil: any is.
	judge func() bool
}

// of tells whether the charge is one under a key. What says neither is no answer, whatever its status: a proxy's page, another
// service at the address.
func (c Charge) of(key string) bool { return c.Key == key && web.Plain(c.ID) }

// of tells whether the reversal is that of a key: nothing was charged, or what was charged was paid back.
func (r Reversal) of(key string) bool {
	return r.Key == key && (r.RefundID == "" && r.ChargeID == "" || web.Plain(r.RefundID) && web.Plain(r.ChargeID))
}

func (c *Client) call(ctx context.Context, call call, into any) error {
	req, err := http.NewRequestWithContext(ctx, call.method, c.base+call.path, bytes.NewReader(call.body))
	if err != nil {
		return fmt.Errorf("%s: %w", call.op, err)
	}
	req.Header.Set("Content-Type", "application/json")
	if call.key != "" {
		req.Header.Set("Idempotency-Key", call.key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return call.noAnswer(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, max(call.limit, maxBody)))
	if err != nil {
		return call.noAnswer(err)
	}
	if err := certain(resp, body); err != nil {
		return fmt.Errorf("%s: %w", call.op, err)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(body, into); err != nil {
		return call.noAnswer(fmt.Errorf("read answer: %w", err))
	}
	if call.judge != nil && !call.judge() {
		return call.noAnswer(errors.New("the answer is about something else"))
	}
	return nil
}

// noAnswer: only a connection that was refused proves that the request was never seen.
func (c call) noAnswer(err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%s: %w", c.op, err)
	}
	return &UncertainError{Op: c.op, Key: c.key, Err: err}
}

// certain turns a status into an outcome, nil for success.
func certain(resp *http.Response, body []byte) error {
	var problem struct{ Code, Message string }
	_ = json.Unmarshal(body, &problem) // a body that is none is no help; the status decides
	switch {
	case resp.StatusCode < 300:
		return nil
	case resp.StatusCode == http.StatusPaymentRequired:
		return ErrDeclined
	case resp.StatusCode == http.StatusConflict && problem.Code == "reversed":
		return ErrReversed
	case resp.StatusCode == http.StatusNotFound && problem.Code == "not_found":
		return ErrUnknownKey
	}
	seconds, _ := strconv.Atoi(resp.Header.Get("Retry-After")) // absent or a date: the ladder's wait
	return &resilience.StatusError{Status: resp.StatusCode, After: time.Duration(seconds) * time.Second, Err: errors.New(problem.Message)}
}
