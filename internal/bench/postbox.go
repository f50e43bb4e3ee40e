package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// postbox is the endpoint that all arms of the benchmark of HTTP workers post to. It reads each body and answers 204, and so does as
// much for one arm as for another. It is the eye that times them: from the first request to the last answer.
type postbox struct {
	url    string
	server *http.Server
	served chan struct{}
	full   chan struct{} // closed when all have come

	mu           sync.Mutex
	rows, n      int
	began, ended time.Time
}

func openPostbox(ctx context.Context, rows int) (*postbox, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	b := &postbox{url: "http://" + listener.Addr().String() + "/", served: make(chan struct{}), full: make(chan struct{}), rows: rows}
	b.server = &http.Server{Handler: b, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		defer close(b.served)
		_ = b.server.Serve(listener) // ends with close; before, posts would fail, and the arm with them
	}()
	return b, nil
}

func (b *postbox) close() {
	_ = b.server.Close()
	<-b.served
}

// ServeHTTP implements [http.Handler].
func (b *postbox) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.begin()
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // the client is gone, and will post again if it wants
	}
	w.WriteHeader(http.StatusNoContent)
	b.end()
}

func (b *postbox) begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.began.IsZero() {
		b.began = time.Now()
	}
}

func (b *postbox) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.n++; b.n == b.rows {
		b.ended = time.Now()
		close(b.full)
	}
}

// posted is how many posts have been answered.
func (b *postbox) posted() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// took is the time of all; once full is closed.
func (b *postbox) took() time.Duration { return b.ended.Sub(b.began) }

// barePoster is net/http as one would use it, with a connection that is kept for each worker.
func barePoster(workers int) *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: workers}, Timeout: handlerTimeout}
}

func post(ctx context.Context, client *http.Client, url string, body []byte) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusNoContent {
		return fmt.Errorf("answered %s", answer.Status)
	}
	return nil
}
