package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// maxAnswer bounds what is read of an answer.
const maxAnswer = 1 << 20

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// json decodes the body; what is none leaves the value as it is.
func (a answer) json(into any) { _ = json.Unmarshal(a.body, into) }

// naive is a client without any pattern: one try, whatever comes back.
type naive struct{ http *http.Client }

func (s *stage) naive() naive { return naive{&http.Client{Transport: s.transport()}} }

// post sends an empty object under an idempotency key; an empty one sends none.
func (n naive) post(ctx context.Context, url, key string) (answer, error) {
	r, err := newPost(ctx, url, key, struct{}{})
	if err != nil {
		return answer{}, err
	}
	return n.send(r)
}

func (n naive) send(r *http.Request) (answer, error) {
	response, err := n.http.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	return answer{response.StatusCode, response.Header, text}, err
}

func newPost(ctx context.Context, url, key string, body any) (*http.Request, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set(httpclient.HeaderKey, key)
	}
	return r, nil
}

// policy guards calls to a dependency as the settings say; its events go into the arm's logs.
func (s *stage) policy(name string, settings resilience.Settings) (*policy.Policy, error) {
	return policy.New(policy.Options{Name: name, Settings: settings, Logger: s.logger})
}

// client calls over HTTP under a policy.
func (s *stage) client(name string, settings resilience.Settings) (*httpclient.Client, *policy.Policy, error) {
	p, err := s.policy(name, settings)
	if err != nil {
		return nil, nil, err
	}
	c, err := httpclient.New(httpclient.Options{Policy: p, Transport: s.transport()})
	return c, p, err
}

// always lets a circuit stay closed.
const always = 1_000_000

// readJSON reads the body of a request.
func readJSON(r *http.Request, into any) error {
	if err := json.NewDecoder(io.LimitReader(r.Body, maxAnswer)).Decode(into); err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	return nil
}

// serve answers HTTP on a free port of this machine until the arm ends, and returns its URL. Requests in hand are cut off then.
func (s *stage) serve(ctx context.Context, h http.Handler) (string, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("listen: %w", err)
	}
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var inHand sync.WaitGroup
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inHand.Add(1)
		defer inHand.Done()
		h.ServeHTTP(w, r)
	})
	server := &http.Server{Handler: counted, ReadHeaderTimeout: 5 * time.Second, BaseContext: func(net.Listener) context.Context { return base }}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends with Close; before, every request would fail and the figures show it
	}()
	s.onClose(func(context.Context) error {
		_ = server.Close()
		<-served
		cancel()
		inHand.Wait()
		return nil
	})
	return "http://" + listener.Addr().String(), nil
}

var errStranger = errors.New("a drill must not send anything to other machines")

// transport makes requests to this machine only, and counts those that wanted elsewhere.
func (s *stage) transport() *http.Transport {
	dialer := &net.Dialer{Timeout: 5 * time.Second}
	t := &http.Transport{
		MaxIdleConnsPerHost: 100, IdleConnTimeout: time.Minute,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil || !net.ParseIP(host).IsLoopback() {
				s.strangers.Add(1)
				return nil, errStranger
			}
			return dialer.DialContext(ctx, network, address)
		},
	}
	s.onClose(func(context.Context) error { t.CloseIdleConnections(); return nil })
	return t
}
