// Package mail is a mail server to practise with, and its client. The server can be told to be down; it keeps what it was given
// in memory, without bound, and sends nothing: it is for tests and demonstrations.
//
//	POST /v1/mails     Idempotency-Key: ORDER/KIND   202; the same again is one mail
//	GET  /admin/mails  what was taken so far
//	PUT  /admin/down   true or false
package mail

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
)

// Mail is about one order.
type Mail struct {
	OrderID string `json:"orderId"`
	Tenant  string `json:"tenant"`
	Kind    string `json:"kind"`
	Subject string `json:"subject"`
}

// Server takes mails. Make one with [NewServer]; it is safe for concurrent use.
type Server struct {
	mu    sync.Mutex
	down  bool
	byKey map[string]bool
	mails []Mail
}

// NewServer returns a server that is up.
func NewServer() *Server { return &Server{byKey: map[string]bool{}} }

// Down has the server refuse every mail, or take them again.
func (s *Server) Down(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// Mails returns what was taken, in its order.
func (s *Server) Mails() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Mail{}, s.mails...)
}

// Routes registers the server's requests.
func (s *Server) Routes(mux *http.ServeMux) {
	mux.Handle("POST /v1/mails", httpserver.Handler(s.take))
	mux.HandleFunc("GET /admin/mails", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.Mails()) // the client is gone: there is nobody to tell
	})
	mux.Handle("PUT /admin/down", httpserver.Handler(func(w http.ResponseWriter, r *http.Request) error {
		var down bool
		if err := json.NewDecoder(r.Body).Decode(&down); err != nil {
			return &httpserver.Problem{Code: resilience.CodeInvalidRequest, Detail: "The body must be true or false."}
		}
		s.Down(down)
		w.WriteHeader(http.StatusNoContent)
		return nil
	}))
}

func (s *Server) take(w http.ResponseWriter, r *http.Request) error {
	key := r.Header.Get(httpclient.HeaderKey)
	var m Mail
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil || key == "" {
		return &httpserver.Problem{Code: resilience.CodeInvalidRequest, Detail: "A mail and an Idempotency-Key are needed."}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return &httpserver.Problem{Code: resilience.CodeOverloaded, Err: errors.New("mail is down")}
	}
	if !s.byKey[key] {
		s.byKey[key], s.mails = true, append(s.mails, m)
	}
	w.WriteHeader(http.StatusAccepted)
	return nil
}

// Client hands mails to a server. It is safe for concurrent use.
type Client struct {
	base string
	http *httpclient.Client
}

// NewClient returns a client for the server at a URL.
func NewClient(base string, client *httpclient.Client) *Client {
	return &Client{base: strings.TrimSuffix(base, "/"), http: client}
}

// Send hands a mail over, once for each order and kind.
func (c *Client) Send(ctx context.Context, m Mail) error {
	body, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode mail: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/mails", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("send mail: %w", err)
	}
	r.Header.Set(httpclient.HeaderKey, m.OrderID+"/"+m.Kind)
	if err := c.http.JSON(r, nil); err != nil {
		return fmt.Errorf("send mail: %w", err)
	}
	return nil
}
