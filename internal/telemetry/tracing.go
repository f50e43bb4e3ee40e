package telemetry

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// TracingOptions says where spans go.
type TracingOptions struct {
	// Endpoint is the collector's OTLP/HTTP URL; a URL without a path means its /v1/traces. Default: the
	// OTEL_EXPORTER_OTLP_* variables, else nowhere.
	Endpoint string
	// SampleRatio is the share of the traces begun here that are kept, from 0 to 1; traces begun elsewhere
	// keep their decision.
	SampleRatio float64
	// Version is this program's version. Required.
	Version string
	// Environ is the environment as NAME=value. Default: empty.
	Environ []string
	// Logger takes the exporter's failures. Default: none are logged.
	Logger zerolog.Logger
}

// StartTracing has OpenTelemetry export spans over OTLP/HTTP and returns what flushes and stops it. Without an
// endpoint it changes nothing: no spans are made.
//
// It sets OpenTelemetry's process-wide provider, because that is where libraries look for theirs; it is
// called once, by the application. An unreachable collector costs spans and never holds up the work.
func StartTracing(ctx context.Context, o TracingOptions) (stop func(context.Context) error, err error) {
	if !o.wanted() {
		return func(context.Context) error { return nil }, nil
	}
	exporter, err := otlptracehttp.New(ctx, o.exporter()...)
	if err != nil {
		return nil, fmt.Errorf("set up tracing: %w", err)
	}
	res, err := resource.New(
		ctx, resource.WithSchemaURL(SchemaURL),
		resource.WithAttributes(attribute.String("service.name", "surefoot"), attribute.String("service.version", o.Version)),
		resource.WithFromEnv(),
	)
	if err != nil {
		return nil, fmt.Errorf("set up tracing: describe this process: %w", err)
	}
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter), sdktrace.WithResource(res),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(o.SampleRatio))),
	)
	otel.SetTracerProvider(provider)
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { o.Logger.Warn().Err(err).Msg("tracing") }))
	return provider.Shutdown, nil
}

// wanted follows OTEL_SDK_DISABLED and OTEL_TRACES_EXPORTER=none too.
func (o TracingOptions) wanted() bool {
	env := map[string]string{}
	for _, entry := range o.Environ {
		name, value, _ := strings.Cut(entry, "=")
		env[name] = value
	}
	if strings.EqualFold(env["OTEL_SDK_DISABLED"], "true") || env["OTEL_TRACES_EXPORTER"] == "none" {
		return false
	}
	return o.Endpoint != "" || env["OTEL_EXPORTER_OTLP_ENDPOINT"] != "" || env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] != ""
}

// exporter leaves everything to the OTEL_* variables that the exporter reads itself, unless there is an
// endpoint of ours.
func (o TracingOptions) exporter() []otlptracehttp.Option {
	if o.Endpoint == "" {
		return nil
	}
	endpoint := o.Endpoint
	if parsed, err := url.Parse(endpoint); err == nil && strings.Trim(parsed.Path, "/") == "" {
		endpoint = strings.TrimRight(endpoint, "/") + "/v1/traces"
	}
	return []otlptracehttp.Option{otlptracehttp.WithEndpointURL(endpoint)}
}
