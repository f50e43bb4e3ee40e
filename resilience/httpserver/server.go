package httpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/resilience"
)

const (
	defaultTimeout       = 30 * time.Second
	defaultMaxConcurrent = 256
	defaultMaxBody       = 1 << 20
	defaultMaxHeader     = 16 << 10
	defaultSlowClient    = 10 * time.Second
	defaultDrain         = 20 * time.Second

	idleTimeout = time.Minute
	// cancelTime is what requests get to end when they are cancelled after the drain.
	cancelTime = time.Second
)

// Options of a [Server].
type Options struct {
	// Handler answers, as a rule an [http.ServeMux]; its patterns name the routes in logs and metrics. Required.
	Handler http.Handler
	// Listen is the address, host:port; port 0 takes any free one. Default: ":8080".
	Listen string
	// Listener takes the place of Listen; Run closes it. Default: none.
	Listener net.Listener
	// Timeout is the limit of one request, its body included. The smaller of it and what the client sends in
	// X-Request-Timeout-Ms, counted from receipt, is the deadline of the request's context. Default: 30 s.
	Timeout time.Duration
	// MaxConcurrent is how many requests may be in hand; more are answered with 503 and Retry-After. Default: 256.
	MaxConcurrent int
	// Probes answers /livez, /readyz and /metrics, past all limits: a server that is overloaded must still be seen. Its requests
	// are neither logged nor counted. Default: these paths are the handler's.
	Probes http.Handler
	// Limiter limits each client over all routes. Default: none.
	Limiter *Limiter
	// MaxBody bounds the body of a request in bytes; a larger one is answered with 413. Default: 1 MiB.
	MaxBody int64
	// MaxHeader bounds the header of a request in bytes. Default: 16 KiB.
	MaxHeader int
	// SlowClient is how long a client may take to send a header, how much longer than Timeout to send a body, and how long to
	// take an answer. Default: 10 s.
	SlowClient time.Duration
	// Drain is how long requests in hand may go on when Run's context ends; then they are cancelled. Default: 20 s.
	Drain time.Duration
	// Logger gets a line when Run answers, one for each request that failed, and at debug level one for each. Default: none.
	Logger zerolog.Logger
	// Metrics are registered here. Default: not at all.
	Metrics prometheus.Registerer
}

func (o Options) withDefaults() Options {
	o.Listen = cmp.Or(o.Listen, ":8080")
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.MaxConcurrent = cmp.Or(o.MaxConcurrent, defaultMaxConcurrent)
	o.MaxBody = cmp.Or(o.MaxBody, defaultMaxBody)
	o.MaxHeader = cmp.Or(o.MaxHeader, defaultMaxHeader)
	o.SlowClient = cmp.Or(o.SlowClient, defaultSlowClient)
	o.Drain = cmp.Or(o.Drain, defaultDrain)
	return o
}

// validate reports every fault at once.
func (o Options) validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf("httpserver: "+format, args...))
		}
	}
	check(o.Handler != nil, "Handler is required")
	check(o.Timeout > 0, "Timeout is %s; use more than 0", o.Timeout)
	check(o.MaxConcurrent > 0, "MaxConcurrent is %d; use 1 or more", o.MaxConcurrent)
	check(o.MaxBody > 0, "MaxBody is %d; use 1 byte or more", o.MaxBody)
	check(o.MaxHeader > 0, "MaxHeader is %d; use 1 byte or more", o.MaxHeader)
	check(o.SlowClient > 0, "SlowClient is %s; use more than 0", o.SlowClient)
	check(o.Drain > 0, "Drain is %s; use more than 0", o.Drain)
	return errors.Join(faults...)
}

// Server answers requests with its handler, within limits. It is an [http.Handler] too, which applies all limits but those of
// connections. It is safe for concurrent use.
type Server struct {
	options Options
	slots   slots
	metrics *metrics
	flood   zerolog.Logger // for lines that clients could have written without end
}

// New returns a server, or an error that names every option that is wrong. It does no I/O.
func New(o Options) (*Server, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Server{options: o, slots: make(slots, o.MaxConcurrent)}
	s.flood = o.Logger.Sample(&zerolog.BurstSampler{Burst: 10, Period: time.Second})
	var err error
	if s.metrics, err = newMetrics(o.Metrics); err != nil {
		return nil, fmt.Errorf("httpserver: %w", err)
	}
	return s, nil
}

// Run listens and answers until ctx ends. Then it takes no more connections, lets requests in hand finish for as long as Drain
// says, cancels what is left with [resilience.ErrShutdown], and returns nil. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	listener, err := s.listen(ctx)
	if err != nil {
		return err
	}
	base, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(resilience.ErrShutdown)
	server := s.server(base)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	s.options.Logger.Info().Stringer("addr", listener.Addr()).Msg("http is served")
	select {
	case err := <-served:
		return fmt.Errorf("serve http: %w", err)
	case <-ctx.Done():
	}
	s.stop(context.WithoutCancel(ctx), server, cancel)
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve http: %w", err)
	}
	return nil
}

func (s *Server) listen(ctx context.Context) (net.Listener, error) {
	if s.options.Listener != nil {
		return s.options.Listener, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.options.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for http on %s: %w", s.options.Listen, err)
	}
	return listener, nil
}

// server has a limit for everything that a client can draw out. The time for writing counts from the end of the header, so
// it must leave the handler its own, and then enough to tell a client whose body was too slow.
func (s *Server) server(base context.Context) *http.Server {
	o := s.options
	return &http.Server{
		Handler:           s,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: o.SlowClient,
		ReadTimeout:       o.SlowClient + o.Timeout,
		WriteTimeout:      o.SlowClient + o.Timeout + o.SlowClient,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    o.MaxHeader,
		ErrorLog:          log.New(connectionLog{s.flood}, "", 0),
	}
}

// stop ends in Drain and cancelTime at the latest. A handler that ignores its context is left behind.
func (s *Server) stop(ctx context.Context, server *http.Server, cancel context.CancelCauseFunc) {
	if shutdown(ctx, server, s.options.Drain) {
		return
	}
	s.options.Logger.Warn().Int("requests", len(s.slots)).Msg("requests outlast the drain and are cancelled")
	cancel(resilience.ErrShutdown)
	if !shutdown(ctx, server, cancelTime) {
		_ = server.Close()
	}
}

// shutdown reports whether all requests ended within limit.
func shutdown(ctx context.Context, server *http.Server, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return server.Shutdown(ctx) == nil
}

// connectionLog takes what net/http has to say about connections.
type connectionLog struct{ logger zerolog.Logger }

func (l connectionLog) Write(line []byte) (int, error) {
	l.logger.Warn().Msg("http: " + clip(string(line)))
	return len(line), nil
}
