package console

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/internal/access"
	"github.com/surefoot-mq/surefoot/internal/listener"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// Limits for browsers. There are few, near by.
const (
	readTimeout  = 10 * time.Second
	writeTimeout = 30 * time.Second
	idleTimeout  = 60 * time.Second
	stopTimeout  = 5 * time.Second
	maxHeader    = 32 << 10
	maxForm      = 64 << 10
	// What may happen at a time, of all and of one person or address: requests, logins, looks into queues, streams of open pages.
	maxRequests, maxRequestsEach = 64, 16
	maxLogins, maxLoginsEach     = 16, 4
	maxLooks, maxLooksEach       = 6, 2
	maxStreams, maxStreamsEach   = 64, 8
	// maxConnections is of all, maxConnectionsPerHost of one address that is no trusted proxy.
	maxConnections        = 1024
	maxConnectionsPerHost = 128
)

// contentPolicy lets a page use what this server serves, and nothing else: no script or style in the page itself, no frames, no way for
// markup to become script.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// serve answers until ctx ends; then streams end at once, and requests in flight have a moment.
func (c *Console) serve(ctx context.Context, opened net.Listener) error {
	server := &http.Server{
		Handler: c.handler(), ErrorLog: listener.ErrorLog(c.opts.Logger),
		ReadTimeout: readTimeout, ReadHeaderTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}
	failed := make(chan error, 1)
	go func() {
		defer telemetry.FatalOnPanic(c.opts.Logger)
		failed <- server.Serve(opened)
	}()
	c.opts.Ready(nil)
	c.opts.Listening(opened.Addr().String())
	select {
	case err := <-failed:
		return fmt.Errorf("serve the console: %w", err)
	case <-ctx.Done():
	}
	c.hub.close()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if server.Shutdown(ctx) != nil {
		_ = server.Close() // it is over: what did not end in time is cut off
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the console: %w", err)
	}
	return nil
}

// handler answers all requests.
func (c *Console) handler() http.Handler {
	own := http.NewCrossOriginProtection()
	own.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusForbidden, "this change was asked for by a page of somebody else; nothing was done")
	}))
	return c.guarded(own.Handler(http.MaxBytesHandler(c.pages.routes().mux, maxForm)))
}

// guarded answers only those who mean this server, a few at a time, and tells browsers what pages may do.
func (c *Console) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", contentPolicy)
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("X-Frame-Options", "DENY")
		head.Set("Referrer-Policy", "same-origin")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		head.Set("Cache-Control", "no-store")
		switch {
		case c.gate.Reaches(r) != nil:
			refuse(w, http.StatusForbidden, c.gate.Reaches(r).Error())
			return
		case !c.ours(r.Host):
			refuse(w, http.StatusMisdirectedRequest, "this console does not answer to that name: use the one of console.public_url, or on its machine 127.0.0.1, [::1] and localhost")
			return
		case foreign(r):
			refuse(w, http.StatusForbidden, "another page may lead here, but not read or embed this one")
			return
		}
		if r.Method == http.MethodPost && r.URL.Path == "/login" { // before it has a place: a form that does not come keeps nobody else out
			r.Body = http.MaxBytesReader(w, r.Body, maxForm)
			_ = r.ParseForm() // what does not come is no login
		}
		if r.URL.Path != "/live" { // streams have places of their own
			of := c.requests
			if strings.HasPrefix(r.URL.Path, "/login") { // whoever is nobody, or waits for a provider, takes none from those who are somebody
				of = c.logins
			}
			leave, err := of.take(c.gate.Key(r))
			if err != nil {
				busy(w, err, "1")
				return
			}
			defer leave()
		}
		next.ServeHTTP(w, r)
	})
}

// ours says whether a request means this server: by its public name, or on loopback, where the port may be another one: that of a tunnel.
func (c *Console) ours(host string) bool {
	if c.public != "" && strings.EqualFold(host, c.public) {
		return true
	}
	if !local(c.opts.Listen) {
		return false
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else if len(host) > 2 && host[0] == '[' && host[len(host)-1] == ']' {
		host = host[1 : len(host)-1]
	}
	return loopback(host)
}

// foreign says whether a page of somebody else asks for more than to lead its reader here. Looks into queues must not be
// had from there either.
func foreign(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return false
	}
	leads := r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
	return !leads && (r.Method == http.MethodGet || r.Method == http.MethodHead)
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = fmt.Fprintln(w, text) // whoever asked is gone
}

// who acts in a request, for the audit.
func (c *Console) who(r *http.Request) string {
	p := access.From(r.Context())
	return p.Name + " (console, " + p.Address + ")"
}
