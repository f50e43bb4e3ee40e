package httpclient

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// Headers that are read or written.
const (
	// HeaderKey makes an operation idempotent: the server gives one effect and one answer to all requests with one key.
	HeaderKey = "Idempotency-Key"
	// HeaderRequestID ties together what several services log about one request.
	HeaderRequestID = "X-Request-Id"
)

// Bounds of what a server may send.
const (
	defaultMaxBody = 1 << 20
	maxErrorBody   = 64 << 10
	maxHeaders     = 256 << 10
)

// Options of a client.
type Options struct {
	// Policy guards the calls. Required.
	Policy *policy.Policy
	// Transport makes the requests. Default: one of the client's own, with as many idle connections as the policy has places.
	Transport http.RoundTripper
	// MaxBody bounds the body of a response, and of a request that has to be kept to be sent again, in bytes. Default: 1 MiB.
	MaxBody int64
	// Describe may change what the policy is told of a request: its tenant, that it repairs, that it is idempotent though its
	// method and headers do not say so. Default: nothing is changed.
	Describe func(r *http.Request, c *policy.Call)
}

// Client makes requests. It is safe for concurrent use.
type Client struct {
	policy    *policy.Policy
	transport http.RoundTripper
	maxBody   int64
	describe  func(r *http.Request, c *policy.Call)
	own       *http.Transport // nil: the transport is somebody else's
}

// New returns a client. It does no I/O.
func New(o Options) (*Client, error) {
	if o.Policy == nil {
		return nil, errors.New("httpclient: Policy is nil; make one with policy.New")
	}
	if o.MaxBody < 0 {
		return nil, fmt.Errorf("httpclient: MaxBody is %d; use 1 byte or more, or 0 for %d", o.MaxBody, defaultMaxBody)
	}
	c := &Client{policy: o.Policy, transport: o.Transport, maxBody: cmp.Or(o.MaxBody, defaultMaxBody), describe: o.Describe}
	if c.describe == nil {
		c.describe = func(*http.Request, *policy.Call) {}
	}
	if c.transport == nil {
		c.own = newTransport(o.Policy.Settings().Bulkhead.Active)
		c.transport = c.own
	}
	return c, nil
}

func newTransport(places int) *http.Transport {
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok { // somebody has replaced it
		t = &http.Transport{Proxy: http.ProxyFromEnvironment}
	}
	t = t.Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 0, places
	t.MaxResponseHeaderBytes = maxHeaders
	return t
}

// Close lets the idle connections of the client's own transport go.
func (c *Client) Close() {
	if c.own != nil {
		c.own.CloseIdleConnections()
	}
}

// Do sends r under its context and the policy. The body of the response is read already; closing it does nothing. A status of 400
// or more is an error: [*policy.Error] with a [*ResponseError] in it. r is not changed, but its body may be read.
func (c *Client) Do(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer func() { _ = r.Body.Close() }()
	}
	call := policy.Call{Idempotent: idempotent(r), Instance: r.URL.Host}
	c.describe(r, &call)
	sent, err := c.replayable(r, call)
	if err != nil {
		return nil, err
	}
	id := requestID(r)
	var answer *http.Response
	err = c.policy.Do(message.WithRequestID(r.Context(), id), call, func(ctx context.Context) error {
		attempt, err := prepare(ctx, sent, id)
		if err != nil {
			return err
		}
		answer, err = c.send(attempt) //nolint:bodyclose // read and closed
		return err
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// JSON is [Client.Do], and decodes the answer into what out points to; nil drops it.
func (c *Client) JSON(r *http.Request, out any) error {
	resp, err := c.Do(r) //nolint:bodyclose // read and closed
	if err != nil || out == nil || resp.StatusCode == http.StatusNoContent {
		return err
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("decode the answer of %s to %s: %w", c.policy.Name(), target(r), err)
	}
	return nil
}

// idempotent says whether a request may be sent several times for one effect.
func idempotent(r *http.Request) bool {
	switch r.Method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return r.Header.Get(HeaderKey) != ""
}

// requestID is the one of the request, else of its context, else a new one.
func requestID(r *http.Request) string {
	if id := r.Header.Get(HeaderRequestID); message.ValidRequestID(id) {
		return id
	}
	if id := message.RequestIDFrom(r.Context()); id != "" {
		return id
	}
	return uuid.NewString()
}

// replayable returns the request with a body that each attempt can have anew. One that can be read only once is kept when it may
// have to be sent again, else it is left as it is.
func (c *Client) replayable(r *http.Request, call policy.Call) (*http.Request, error) {
	if r.Body == nil || r.Body == http.NoBody || r.GetBody != nil || !call.Idempotent {
		return r, nil
	}
	kept, err := io.ReadAll(io.LimitReader(r.Body, c.maxBody+1))
	if err != nil {
		return nil, fmt.Errorf("read the body of the request to %s: %w", target(r), err)
	}
	if int64(len(kept)) > c.maxBody {
		return nil, fmt.Errorf("the body of the request to %s is over %d bytes and can be read only once; set GetBody, so that it can be sent again", target(r), c.maxBody)
	}
	again := *r
	again.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(kept)), nil }
	again.ContentLength = int64(len(kept))
	return &again, nil
}

// sentKey is [HeaderKey] as it is sent: to a server it is the same name. net/http sends a request with the canonical one again by
// itself when its connection breaks; but attempts are the policy's to make, and are recorded. What it sends again because nothing of
// it had left is no attempt.
const sentKey = "idempotency-key"

// prepare makes the request of one attempt.
func prepare(ctx context.Context, r *http.Request, id string) (*http.Request, error) {
	attempt := r.Clone(ctx)
	if r.GetBody != nil {
		body, err := r.GetBody()
		if err != nil {
			return nil, resilience.Permanent(fmt.Errorf("body for another attempt: %w", err))
		}
		attempt.Body = body
	}
	if attempt.Header == nil {
		attempt.Header = http.Header{}
	}
	if key, some := attempt.Header[HeaderKey]; some {
		delete(attempt.Header, HeaderKey)
		attempt.Header[sentKey] = key
	}
	attempt.Header.Set(HeaderRequestID, id)
	resilience.SetTimeoutHeader(ctx, attempt.Header)
	if parent, state := telemetry.TraceHeaders(ctx); parent != "" && attempt.Header.Get("Traceparent") == "" {
		attempt.Header.Set("Traceparent", parent)
		if state != "" {
			attempt.Header.Set("Tracestate", state)
		}
	}
	return attempt, nil
}

// send makes one attempt and reads what comes back.
func (c *Client) send(r *http.Request) (*http.Response, error) {
	resp, err := c.transport.RoundTrip(r)
	if err != nil {
		return nil, &url.Error{Op: r.Method, URL: target(r), Err: err}
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= http.StatusBadRequest {
		return nil, c.refusal(r, resp)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, c.maxBody+1))
	switch {
	case err != nil:
		return nil, &url.Error{Op: "read answer of " + r.Method, URL: target(r), Err: err}
	case int64(len(body)) > c.maxBody:
		return nil, resilience.Permanent(&TooLargeError{Target: target(r), Status: resp.StatusCode, Limit: c.maxBody})
	}
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	return resp, nil
}

// refusal is the error of an answer that is no success. What of its body can be read is kept.
func (c *Client) refusal(r *http.Request, resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	e := &ResponseError{Method: r.Method, Target: target(r), Status: resp.StatusCode, Header: resp.Header, Body: body}
	asked := resp.Header.Get("Retry-After") != ""
	if asked || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		e.After = resilience.RetryAfterOf(resp.Header, time.Now())
	}
	if e.pending() {
		return resilience.RetryAfter(&PendingError{e}, resilience.RetryAfterOf(resp.Header, time.Now()))
	}
	return e
}

// target is a request's URL for people: without user, query and fragment, which may hold secrets.
func target(r *http.Request) string {
	return message.Clip((&url.URL{Scheme: r.URL.Scheme, Host: r.URL.Host, Path: r.URL.Path}).String(), message.MaxShortString)
}
