package drill

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

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
