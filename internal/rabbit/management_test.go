package rabbit_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func management(t *testing.T, broker testkit.AMQP) *rabbit.Management {
	t.Helper()
	m, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: broker.URL, URL: broker.ManagementURL})
	require.NoError(t, err)
	return m
}

func TestManagementShowsWhatIsThere(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	m := management(t, broker)
	name := queue(t, conn, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": int64(7)})
	odd := "a/b %2F?#+ü"
	do(t, conn, func(ch *amqp.Channel) error {
		if err := ch.ExchangeDeclare(odd, "topic", true, false, false, false, nil); err != nil {
			return err
		}
		return ch.QueueBind(name, "order.#", odd, false, nil)
	})
	broker.API(t, http.MethodPut, "/api/policies/"+broker.Vhost+"/p", map[string]any{"pattern": "^q", "definition": map[string]any{"max-length": 5}, "priority": 3, "apply-to": "queues"}, nil)
	broker.API(t, http.MethodPut, "/api/operator-policies/"+broker.Vhost+"/o", map[string]any{"pattern": "^q", "definition": map[string]any{"max-length": 4}, "apply-to": "queues"}, nil)

	queues, err := m.Queues(t.Context())
	require.NoError(t, err)
	require.Len(t, queues, 1)
	require.Equal(t, name, queues[0].Name)
	require.Equal(t, "quorum", queues[0].Type)
	require.True(t, queues[0].Durable)
	require.EqualValues(t, "7", queues[0].Arguments["x-delivery-limit"])
	one, err := m.Queue(t.Context(), name)
	require.NoError(t, err)
	require.Equal(t, name, one.Name)

	exchanges, err := m.Exchanges(t.Context())
	require.NoError(t, err)
	require.Contains(t, exchanges, rabbit.Exchange{Name: odd, Type: "topic", Durable: true, Arguments: map[string]any{}})
	bindings, err := m.Bindings(t.Context())
	require.NoError(t, err)
	bound := bindings[len(bindings)-1]
	require.Equal(t, []string{odd, name, "queue", "order.#"}, []string{bound.Source, bound.Destination, bound.DestinationType, bound.RoutingKey})
	policies, err := m.Policies(t.Context())
	require.NoError(t, err)
	require.Len(t, policies, 2)
	require.Equal(t, []any{"p", 3, false, "o", true}, []any{policies[0].Name, policies[0].Priority, policies[0].Operator, policies[1].Name, policies[1].Operator})

	require.NoError(t, m.Unbind(t.Context(), bound))
	require.NoError(t, m.Unbind(t.Context(), bound), "gone is gone")
	bindings, err = m.Bindings(t.Context())
	require.NoError(t, err)
	require.NotContains(t, bindings, bound)
}

func TestManagementTellsItsFailuresApart(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	m := management(t, broker)
	_, err := m.Queue(t.Context(), "nosuch")
	require.ErrorIs(t, err, rabbit.ErrNotFound)

	wrong, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: "amqp://nobody:s3cret@localhost/v", URL: broker.ManagementURL})
	require.NoError(t, err)
	_, err = wrong.Queues(t.Context())
	require.ErrorIs(t, err, rabbit.ErrManagementDenied)
	require.NotContains(t, err.Error(), "s3cret")

	own, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: broker.URL, URL: strings.Replace(broker.ManagementURL, "://", "://nobody:s3cret@", 1)})
	require.NoError(t, err)
	_, err = own.Queues(t.Context())
	require.ErrorIs(t, err, rabbit.ErrManagementDenied, "the URL's own credentials count")

	away, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: "amqp://u:s3cret@127.0.0.1:1/v", URL: "http://127.0.0.1:1"})
	require.NoError(t, err)
	_, err = away.Queues(t.Context())
	require.ErrorIs(t, err, rabbit.ErrManagementUnreachable)
	require.NotContains(t, err.Error(), "s3cret")
	require.Equal(t, "v", away.Vhost())
}

// What answers at the address may be anything.
func TestManagementTrustsNoAnswer(t *testing.T) {
	t.Parallel()
	var elsewhere bool
	for name, handler := range map[string]http.HandlerFunc{
		"not JSON": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"cut off":  func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`[{"name":"`)) },
		"an error": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			elsewhere = elsewhere || r.URL.Path == "/elsewhere"
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		},
		"without end": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`[{"name":"`))
			chunk := []byte(strings.Repeat("x", 1<<20))
			for range 100 {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		},
	} {
		server := httptest.NewServer(handler)
		m, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: "amqp://u:s3cret@h/v", URL: server.URL})
		require.NoError(t, err)
		_, err = m.Exchanges(t.Context())
		require.ErrorIs(t, err, rabbit.ErrManagementUnreachable, name)
		require.NotContains(t, err.Error(), "s3cret")
		server.Close()
	}
	require.False(t, elsewhere, "the password would go along")
}

func TestTheManagementURLFollowsTheBrokers(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"amqp://u:p@rabbit.example:5673/v": "http://rabbit.example:15672",
		"amqps://u:p@rabbit.example/v":     "https://rabbit.example:15671",
		"amqp://[::1]/":                    "http://[::1]:15672",
	} {
		got, err := rabbit.ManagementURL(in)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

func TestManagementReadsAllPages(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	const n = 5
	for range n {
		queue(t, conn, amqp.Table{"x-queue-type": "classic"})
	}
	m := management(t, broker)
	rabbit.SmallPages(m, 2)
	queues, err := m.Queues(t.Context())
	require.NoError(t, err)
	names := map[string]bool{}
	for _, q := range queues {
		names[q.Name] = true
	}
	require.Len(t, names, n)
}
