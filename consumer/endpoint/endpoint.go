// Package endpoint hands messages to an HTTP endpoint, in whatever language that is written: one POST per message.
//
// The body is the payload as it is. The headers, whose values are as in [Escape]:
//
//	Surefoot-Message-Id, Surefoot-Message-Type, Surefoot-Attempt (from 1), Surefoot-Key, Surefoot-Queue, Surefoot-Source,
//	Surefoot-Occurred-At (RFC 3339), Surefoot-Correlation-Id, Surefoot-Deadline-Ms (left when it is sent), Content-Type,
//	Idempotency-Key (the message's id), X-Request-Id, Traceparent, Tracestate; Authorization and Surefoot-Signature when asked for
//
// A status of 2xx means done, and so does 409: the endpoint knows the message already. Both may carry events in their body:
// {"events": [...]}, see docs/workers.md. 408, 425, 429, 503, a connection that fails and a timeout are transient, with Retry-After
// honoured; another 5xx gets one more try; anything else is permanent. The beginning of the answer, at most 8 KiB, goes
// into the failure record.
//
// The policy of the endpoint's dependency guards each call, which is one attempt: the queue is what tries again. While its circuit is
// open, and when it has no place, messages are held and nothing is counted.
//
// No transaction is open meanwhile, and the endpoint shares none with the inbox: it is called at least once and must be idempotent by
// the message's id.
package endpoint

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/internal/answer"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// maxSecret bounds a file that holds a token or a key.
const maxSecret = 64 << 10

// Options of an endpoint.
type Options struct {
	// URL that messages are posted to; redirects are not followed. Required.
	URL string
	// Queue is told to the endpoint. Default: "".
	Queue string
	// Policy guards the calls; its retries are not used. Required.
	Policy *policy.Policy
	// BearerFile holds a token that is sent as authorization; it is read for each message. Default: none.
	BearerFile string
	// SigningKeyFile holds the key of [Sign]; it is read for each message. Default: none, requests are not signed.
	SigningKeyFile string
	// CAFile holds the trusted authorities in PEM form; it is read for each connection. Default: the system's.
	CAFile string
	// CertFile and KeyFile are the client's certificate; they are read for each connection. Default: none.
	CertFile, KeyFile string
	// IgnoreAnswer leaves the bodies of successes alone: the endpoint emits no events. Default: false.
	IgnoreAnswer bool
	// Now is the time of signatures. Default: time.Now.
	Now func() time.Time
}

// Endpoint posts messages. It is safe for concurrent use.
type Endpoint struct {
	o         Options
	blank     *http.Request // what all requests have alike, so that the URL is not read anew for each
	client    *httpclient.Client
	transport *http.Transport
	files     tlsfiles.Files
}

// New checks the options and reads the files that they name once, so that what is missing is found at the start. It makes no
// connection.
func New(o Options) (*Endpoint, error) {
	if o.Policy == nil || o.URL == "" {
		return nil, errors.New("endpoint: URL and Policy are required")
	}
	blank, err := http.NewRequest(http.MethodPost, o.URL, nil) //nolint:noctx // it is never sent
	if err != nil {
		return nil, errors.New("endpoint: the URL is none (not shown: it may hold secrets)")
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	files := tlsfiles.Files{CA: o.CAFile, Cert: o.CertFile, Key: o.KeyFile}
	trust, err := files.Client()
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	if _, err := o.secrets(); err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	e := &Endpoint{o: o, files: files, blank: blank, transport: newTransport(o.Policy.Settings().Bulkhead.Active, files, trust)}
	e.client, err = httpclient.New(httpclient.Options{
		Policy: o.Policy, Transport: deadlines{e.transport}, MaxBody: answer.MaxBytes,
		// The queue tries again, with its delays and its count. Trying here too would multiply.
		Describe: func(_ *http.Request, c *policy.Call) { c.Idempotent = false },
	})
	return e, err
}

// Close lets idle connections go.
func (e *Endpoint) Close() { e.transport.CloseIdleConnections() }

func newTransport(places int, files tlsfiles.Files, trust *tls.Config) *http.Transport {
	const maxHeaders = 256 << 10
	t, ok := http.DefaultTransport.(*http.Transport)
	if !ok { // somebody has replaced it
		t = &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true}
	}
	t = t.Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost, t.MaxResponseHeaderBytes = 0, places, maxHeaders
	t.TLSClientConfig = trust // through a proxy
	t.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return dialTLS(ctx, t, files, network, addr)
	}
	return t
}

// dialTLS reads the files anew. That they cannot be used is no fault of the message.
func dialTLS(ctx context.Context, t *http.Transport, files tlsfiles.Files, network, addr string) (net.Conn, error) {
	trust, err := files.Client()
	if err != nil {
		return nil, resilience.Unavailable(fmt.Errorf("endpoint: %w", err))
	}
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	trust.ServerName, trust.NextProtos = host, []string{"h2", "http/1.1"}
	socket, err := dial(ctx, t, network, addr)
	if err != nil {
		return nil, err
	}
	if t.TLSHandshakeTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t.TLSHandshakeTimeout)
		defer cancel()
	}
	conn := tls.Client(socket, trust)
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	return conn, nil
}

func dial(ctx context.Context, t *http.Transport, network, addr string) (net.Conn, error) {
	if t.DialContext != nil {
		return t.DialContext(ctx, network, addr)
	}
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// secrets are what goes with a request and may be replaced at any time.
type secrets struct{ bearer, key string }

func (o Options) secrets() (s secrets, err error) {
	if o.BearerFile != "" {
		if s.bearer, err = readSecret(o.BearerFile); err != nil {
			return s, fmt.Errorf("read bearer token: %w", err)
		}
	}
	if o.SigningKeyFile != "" {
		if s.key, err = readSecret(o.SigningKeyFile); err != nil {
			return s, fmt.Errorf("read signing key: %w", err)
		}
	}
	return s, nil
}

// readSecret wants one line of printable ASCII. Its errors show nothing of it.
func readSecret(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxSecret))
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(text))
	if secret == "" || strings.ContainsFunc(secret, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
		return "", fmt.Errorf("%s must hold one line of printable ASCII", path)
	}
	return secret, nil
}

// Handle is a [github.com/surefoot-mq/surefoot/consumer.RemoteHandler].
func (e *Endpoint) Handle(ctx context.Context, m message.Message) ([]message.Message, error) {
	request, err := e.request(ctx, m)
	if err != nil {
		return nil, err
	}
	response, err := e.client.Do(request) //nolint:bodyclose // read and closed
	if err != nil {
		return e.refused(e.files.Explain(err, e.blank.URL.Hostname()))
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return nil, resilience.Permanent(failed(errors.New("redirects are not followed; give the URL to which it leads"), response.StatusCode, body))
	}
	return e.events(response.StatusCode, response.Header, body)
}

// events of an answer that says done. One that is broken is a fault of the endpoint that another try would show again.
func (e *Endpoint) events(status int, header http.Header, body []byte) ([]message.Message, error) {
	if e.o.IgnoreAnswer {
		return nil, nil
	}
	events, err := answer.FromHTTP(header.Get("Content-Type"), body)
	if err != nil {
		return nil, resilience.Permanent(failed(fmt.Errorf("the message is done, but the answer %w; no event was emitted", err), status, body))
	}
	return events, nil
}

func (e *Endpoint) request(ctx context.Context, m message.Message) (*http.Request, error) {
	secrets, err := e.o.secrets()
	if err != nil { // no fault of the message
		return nil, resilience.Unavailable(fmt.Errorf("endpoint: %w", err))
	}
	r := e.blank.WithContext(ctx)
	r.Header = http.Header{}
	if len(m.Payload) > 0 { // with a body, a length of 0 would mean that it is not known
		r.ContentLength = int64(len(m.Payload))
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(m.Payload)), nil }
		r.Body, _ = r.GetBody()
	}
	for name, value := range e.o.metadata(m) {
		if value != "" {
			r.Header.Set(name, Escape(value))
		}
	}
	r.Header.Set("Content-Type", contentType(m.ContentType))
	r.Header.Set("User-Agent", "surefoot")
	if message.ValidRequestID(m.RequestID) {
		r.Header.Set(httpclient.HeaderRequestID, m.RequestID)
	}
	if parent, _ := telemetry.TraceHeaders(ctx); parent == "" { // nothing is traced here: what the message has goes on
		setTrace(ctx, r.Header, m)
	}
	if secrets.bearer != "" {
		r.Header.Set("Authorization", "Bearer "+secrets.bearer)
	}
	if secrets.key != "" {
		r.Header.Set(HeaderSignature, Sign(secrets.key, e.o.Now(), r.Header, m.Payload))
	}
	return r, nil
}

// Headers of a request.
const (
	HeaderMessageID   = "Surefoot-Message-Id"
	HeaderMessageType = "Surefoot-Message-Type"
	HeaderAttempt     = "Surefoot-Attempt"
	HeaderKey         = "Surefoot-Key"
	HeaderDeadline    = "Surefoot-Deadline-Ms"
	HeaderSignature   = "Surefoot-Signature"
)

func (o Options) metadata(m message.Message) map[string]string {
	occurred := ""
	if !m.OccurredAt.IsZero() {
		occurred = m.OccurredAt.UTC().Format(time.RFC3339)
	}
	return map[string]string{
		HeaderMessageID: m.ID, httpclient.HeaderKey: m.ID, HeaderMessageType: m.Type, HeaderKey: m.Key,
		HeaderAttempt: strconv.Itoa(m.Attempts + 1), "Surefoot-Queue": o.Queue, "Surefoot-Source": m.Source,
		"Surefoot-Occurred-At": occurred, "Surefoot-Correlation-Id": m.CorrelationID,
	}
}

// contentType is the message's, where it is one.
func contentType(said string) string {
	if _, _, err := mime.ParseMediaType(said); err != nil || len(said) > maxValue || Escape(strings.ReplaceAll(said, " ", "")) != strings.ReplaceAll(said, " ", "") {
		return "application/octet-stream"
	}
	return said
}

// setTrace writes the message's trace context, where it is one.
func setTrace(ctx context.Context, h http.Header, m message.Message) {
	parent, state := telemetry.TraceHeaders(telemetry.TraceContext(ctx, m.TraceParent, m.TraceState))
	if parent == "" {
		return
	}
	h.Set("Traceparent", parent)
	if state != "" {
		h.Set("Tracestate", state)
	}
}

// deadlines tells the endpoint how long there is, under the name of the other headers too.
type deadlines struct{ base *http.Transport }

// RoundTrip implements [http.RoundTripper]. The request is an attempt's own copy.
func (d deadlines) RoundTrip(r *http.Request) (*http.Response, error) {
	if left := r.Header.Get(resilience.HeaderTimeout); left != "" {
		r.Header.Set(HeaderDeadline, left)
	}
	return d.base.RoundTrip(r)
}
