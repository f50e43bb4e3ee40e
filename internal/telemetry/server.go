package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/listener"
	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
)

// Bounds of the connections to the probes. Those of one address leave as many to the others: it cannot keep the probes from who decides
// by them whether the process lives.
const (
	maxProbes        = 256
	maxProbesPerHost = maxProbes / 2
)

// Limits for clients of the probes. They are small requests from near by: whoever needs longer is a slow
// client that would hold a connection.
const (
	readTimeout  = 5 * time.Second
	writeTimeout = 30 * time.Second
	idleTimeout  = 60 * time.Second
	maxHeader    = 16 << 10
)

// ServerOptions says what the probes serve.
type ServerOptions struct {
	// Listen is the address, host:port; port 0 takes any free one. Required.
	Listen string
	// Files are the certificate of the listener. Default: none, no TLS.
	Files tlsfiles.Files
	// Readiness answers /readyz. Required.
	Readiness *Readiness
	// Gatherer answers /metrics. Required.
	Gatherer prometheus.Gatherer
	// Logger takes errors of scrapes and of connections. Default: none are logged.
	Logger zerolog.Logger
}

// Server answers /livez, /readyz and /metrics.
type Server struct {
	http     *http.Server
	listener net.Listener
	done     chan error
}

// Serve listens and answers until Close. /livez says 200 whenever the process can answer at all: it never
// looks at the broker or the database, because restarting a healthy process does not bring them back.
func Serve(ctx context.Context, opts ServerOptions) (*Server, error) {
	opened, err := listener.Listen(ctx, listener.Options{
		Address: opts.Listen, Name: "http", Files: opts.Files, Connections: maxProbes, PerHost: maxProbesPerHost, Logger: opts.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("probes: %w", err)
	}
	server := &Server{
		listener: opened,
		done:     make(chan error, 1),
		http: &http.Server{
			Handler:           handler(opts),
			ReadTimeout:       readTimeout,
			ReadHeaderTimeout: readTimeout,
			WriteTimeout:      writeTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeader,
			ErrorLog:          listener.ErrorLog(opts.Logger),
		},
	}
	go func() { server.done <- server.http.Serve(opened) }()
	return server, nil
}

// Addr is the address that is listened on, with its real port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close stops listening, lets requests in flight finish until ctx ends, and waits for the server.
func (s *Server) Close(ctx context.Context) error {
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

func handler(opts ServerOptions) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"status": "ok"})
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		ready, reasons := opts.Readiness.Snapshot()
		if ready {
			writeJSON(w, http.StatusOK, map[string]any{"status": "ready"})
			return
		}
		writeJSON(w, http.StatusServiceUnavailable, map[string]any{"status": "not ready", "reasons": reasons})
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(opts.Gatherer, promhttp.HandlerOpts{
		ErrorLog:      scrapeLog{opts.Logger},
		ErrorHandling: promhttp.ContinueOnError,
		Timeout:       readTimeout,
	}))
	return mux
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client is gone: there is nobody to tell
}

// scrapeLog lets promhttp report errors to the injected logger.
type scrapeLog struct{ logger zerolog.Logger }

func (l scrapeLog) Println(v ...any) { l.logger.Error().Msg("metrics: " + fmt.Sprint(v...)) }
