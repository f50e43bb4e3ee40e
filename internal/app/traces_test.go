package app_test

import (
	"context"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/topology"
)

// The whole way of a message that fails twice, lies dead and is redriven: each step is a span that links to the one of its Enqueue. It sets the
// process-wide provider, as the application does; the parallel tests of this package wait until it has ended.
func TestEverySpanLinksToTheEnqueue(t *testing.T) { //nolint:paralleltest // see above
	recorder := tracetest.NewSpanRecorder()
	otel.SetTracerProvider(sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)))
	defer otel.SetTracerProvider(noop.NewTracerProvider())

	db, vhost := testkit.Database(t), testkit.Broker(t)
	mended := filepath.Join(t.TempDir(), "mended")
	spec := topology.Spec{Exchange: "shop.events", Queues: []topology.Queue{{
		Name: "mail", Bindings: []string{"order.#"}, Retry: []time.Duration{200 * time.Millisecond}, MaxAttempts: 2,
		Target: &topology.Target{Exec: []string{"sh", "-c", "test -e " + mended}},
	}}}
	top, err := topology.New(topology.Options{Spec: spec, URL: vhost.URL, ManagementURL: vhost.ManagementURL})
	require.NoError(t, err)
	_, err = top.Apply(t.Context(), topology.ApplyOptions{})
	require.NoError(t, err)
	c := settings(db)
	c.AMQP.URL, c.AMQP.ManagementURL, c.Topology = config.URL(vhost.URL), config.URL(vhost.ManagementURL), spec
	p := start(t, c, slices.DeleteFunc(app.Roles(), func(r app.Role) bool { return r.Name != "relay" && r.Name != "consume" })...)
	testkit.Eventually(t, patience, "the roles to be ready", func() bool { return p.get(t, "/readyz").code == http.StatusOK })

	box, err := outbox.New(outbox.Options{Schema: db.Schema, Exchange: "shop.events"})
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), db.Pool, func(tx pgx.Tx) error {
		_, err := box.Enqueue(t.Context(), tx, message.Message{ID: "m1", Type: "order.created", Payload: []byte("secret")})
		return err
	}))
	letters, err := deadletter.New(deadletter.Options{
		Pool: db.Pool, Schema: db.Schema, AMQPURL: vhost.URL, ManagementURL: vhost.ManagementURL, Queues: []deadletter.Queue{{Name: "mail"}}, Logger: testkit.Logger(t),
	})
	require.NoError(t, err)
	named := func(name string) (spans []sdktrace.ReadOnlySpan) {
		for _, span := range recorder.Ended() {
			if span.Name() == name {
				spans = append(spans, span)
			}
		}
		return spans
	}
	testkit.Eventually(t, patience, "the dead letter", func() bool { return len(named("dead-letter mail.dlq")) == 1 })
	require.NoError(t, os.WriteFile(mended, nil, 0o600))
	testkit.Eventually(t, patience, "the redrive", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		result, err := letters.Redrive(ctx, deadletter.RedriveRequest{Common: deadletter.Common{Queue: "mail", Who: "ann"}})
		return err == nil && result.Done == 1
	})
	testkit.Eventually(t, patience, "the last attempt", func() bool { return len(named("process mail")) == 3 })
	require.NoError(t, p.end(t))

	created := named(telemetry.SpanEnqueue)
	require.Len(t, created, 1)
	want := map[string]int{
		telemetry.SpanEnqueue: 1, "publish shop.events": 1, "process mail": 3, "retry mail.retry": 1, "dead-letter mail.dlq": 1, "redrive mail": 1,
	}
	got := map[string]int{}
	for _, span := range recorder.Ended() {
		got[span.Name()]++
		if span.Name() == telemetry.SpanEnqueue {
			continue
		}
		require.Equal(t, []trace.SpanContext{created[0].SpanContext().WithRemote(true)}, linked(span), span.Name())
		for _, attribute := range span.Attributes() {
			require.NotContains(t, attribute.Value.String(), "secret", "no payload in %s", span.Name())
			if attribute.Key == telemetry.AttrMessageID {
				require.Equal(t, "m1", attribute.Value.AsString())
			}
		}
	}
	require.Equal(t, want, got, slices.Collect(maps.Keys(got)))
}

func linked(span sdktrace.ReadOnlySpan) (to []trace.SpanContext) {
	for _, link := range span.Links() {
		to = append(to, link.SpanContext)
	}
	return to
}
