package console_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/console"
	"github.com/surefoot-mq/surefoot/internal/dlqindex"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/topology"
)

const (
	work = "orders.saga"
	dlq  = "orders.saga.dlq"
	// patience is how long a test waits for what must happen: after a slow answer, of up to 5 s, the console rests for up to 15 s.
	patience = 45 * time.Second
)

// stage is a vhost with one queue, a schema, and a console that serves them.
type stage struct {
	testing.TB
	db     testkit.DB
	broker testkit.AMQP
	ch     *amqp.Channel
	base   string // the console's address, without a trailing slash
	stop   func()
	served *console.Console
}

func spec() topology.Spec {
	return topology.Spec{Exchange: "shop.events", Queues: []topology.Queue{
		{Name: work, Bindings: []string{"order.*"}, Retry: []time.Duration{time.Second}, Owner: "team-orders", Runbook: "docs/runbooks/dlq.md"},
		{Name: "stock.reserve", Bindings: []string{"order.created"}, Owner: "team-stock"},
	}}
}

func newStage(t testing.TB, change ...func(*console.Options)) *stage {
	t.Helper()
	s := &stage{TB: t, db: testkit.Database(t), broker: testkit.Broker(t)}
	conn, err := amqp.Dial(s.broker.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s.ch, err = conn.Channel()
	require.NoError(t, err)
	require.NoError(t, s.ch.Confirm(false))
	s.topology()
	s.serve(change...)
	return s
}

func (s *stage) topology() {
	s.Helper()
	top, err := topology.New(topology.Options{Spec: spec(), URL: s.broker.URL, ManagementURL: s.broker.ManagementURL, Logger: testkit.Logger(s)})
	require.NoError(s, err)
	_, err = top.Apply(s.Context(), topology.ApplyOptions{})
	require.NoError(s, err)
}

// serve runs a console until the test ends, or stop is called.
func (s *stage) serve(change ...func(*console.Options)) {
	s.Helper()
	addr := make(chan string, 1)
	o := console.Options{
		Listen: "127.0.0.1:0", Pool: s.db.Pool, Schema: s.db.Schema, AMQPURL: s.broker.URL, ManagementURL: s.broker.ManagementURL, Mask: []string{"*secret*", "*card*"},
		Topology: spec(), Who: "ann@test", Interval: 200 * time.Millisecond, Logger: testkit.Logger(s), Host: "ops1", Version: "v1.2.3",
		Listening: func(at string) { addr <- at },
	}
	for _, c := range change {
		c(&o)
	}
	c, err := console.New(o)
	require.NoError(s, err)
	s.served = c
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stopped := false
	s.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(s, <-done)
		}
	}
	s.Cleanup(s.stop)
	select {
	case at := <-addr:
		s.base = "http://" + at
	case err := <-done:
		require.NoError(s, err)
	case <-time.After(patience):
		require.Fail(s, "the console does not listen")
	}
}

// answer is what a browser gets.
type answer struct {
	status int
	head   http.Header
	body   string
}

// cookies gives a request those that the answer sets.
func (a answer) cookies(r *http.Request) {
	for _, c := range (&http.Response{Header: a.head}).Cookies() {
		if c.MaxAge >= 0 {
			r.AddCookie(c)
		}
	}
}

func (s *stage) do(r *http.Request) answer {
	s.Helper()
	client := http.Client{
		Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(r)
	require.NoError(s, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(s, err)
	return answer{response.StatusCode, response.Header, string(body)}
}

func (s *stage) request(method, path string, form url.Values, change ...func(*http.Request)) *http.Request {
	s.Helper()
	var body io.Reader = http.NoBody
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r, err := http.NewRequestWithContext(s.Context(), method, s.base+path, body)
	require.NoError(s, err)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	for _, c := range change {
		c(r)
	}
	return r
}

func (s *stage) get(path string) answer {
	s.Helper()
	return s.do(s.request(http.MethodGet, path, nil))
}

// page gets a page that must be there.
func (s *stage) page(path string) string {
	s.Helper()
	a := s.get(path)
	require.Equal(s, http.StatusOK, a.status, "%s: %s", path, a.body)
	return a.body
}

// see waits until a page says something.
func (s *stage) see(path string, wanted ...string) (body string) {
	s.Helper()
	testkit.EventuallyNil(s, patience, path, func() error {
		body = s.get(path).body
		for _, text := range wanted {
			if !strings.Contains(body, text) {
				return errors.New("does not say " + text)
			}
		}
		return nil
	})
	return body
}

// letter is a dead letter as the consumer writes it.
func letter(id, typ, class, text string) amqp.Publishing {
	h := amqp.Table{message.HeaderKey: "key-" + id, "tenant": "acme", message.HeaderAttempts: int64(5)}
	message.SetOrigin(h, message.Origin{Exchange: "shop.events", RoutingKey: typ, Queue: work})
	now := time.Now()
	for n, host := range []string{"worker-1", "worker-2"} {
		message.Failure{
			Class: class, Type: "*errors.errorString", Message: text, Stack: "main.go:1", Host: host, Version: "v41", LastFailedAt: now.Add(time.Duration(n-1) * time.Minute),
		}.Write(h, n+1)
	}
	return amqp.Publishing{
		Headers: h, MessageId: id, Type: typ, ContentType: "application/json", DeliveryMode: amqp.Persistent, Timestamp: now,
		Body: []byte(`{"orderId":"` + id + `","secret":"body-of-` + id + `"}`),
	}
}

// fill puts messages into the dead-letter queue, confirmed, in order.
func (s *stage) fill(messages ...amqp.Publishing) {
	s.Helper()
	for _, m := range messages {
		confirm, err := s.ch.PublishWithDeferredConfirm("", dlq, true, false, m)
		require.NoError(s, err)
		require.True(s, confirm.Wait(), "fill %s", dlq)
	}
}

// consume runs a real consumer of the work queue, whose handler fails for good where it says so.
func (s *stage) consume(handle func(id string) error) {
	s.Helper()
	c, err := consumer.New(consumer.Options{
		Queue: work, URL: s.broker.URL, Pool: s.db.Pool, Schema: s.db.Schema, Logger: testkit.Logger(s), Concurrency: 2, Version: "v42",
		Retry: []consumer.Tier{{Queue: work + ".retry", Delay: time.Second}},
		Handler: func(_ context.Context, _ pgx.Tx, m message.Message) error {
			if err := handle(m.ID); err != nil {
				return resilience.Permanent(err)
			}
			return nil
		},
	})
	require.NoError(s, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(s.Context()))
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	s.Cleanup(func() { cancel(); require.NoError(s, <-done) })
}

// send publishes messages to the work queue as the relay would.
func (s *stage) send(ids ...string) {
	s.Helper()
	for _, id := range ids {
		confirm, err := s.ch.PublishWithDeferredConfirm("shop.events", "order.paid", true, false, amqp.Publishing{
			MessageId: id, Type: "order.paid", ContentType: "application/json", DeliveryMode: amqp.Persistent, Body: []byte(`{"orderId":"` + id + `"}`),
		})
		require.NoError(s, err)
		require.True(s, confirm.Wait())
	}
}

func names(prefix string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s-%03d", prefix, i))
	}
	return ids
}

// index has the letter in the index, as its consumer would, were it ours.
func (s *stage) index(m amqp.Publishing) {
	s.Helper()
	store := dlqindex.New(s.db.Pool, s.db.Schema)
	queue, err := store.Queue(s.Context(), s.broker.Vhost, work)
	require.NoError(s, err)
	require.NoError(s, store.Died(s.Context(), queue, []dlqindex.Entry{dlqindex.Of(dlqindex.Letter{
		ID: m.MessageId, Type: m.Type, Source: m.AppId, CorrelationID: m.CorrelationId, Headers: m.Headers, Body: m.Body,
		Class: message.Text(m.Headers, message.HeaderErrorClass), DiedAt: time.Now(),
	})}))
}

// poolThrough is a pool that the network can fail.
func poolThrough(t testing.TB, network *testkit.FaultyNetwork, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pg.Open(t.Context(), pg.Options{URL: network.Through(t, url), Name: "console", MaxConns: 4, ConnectTimeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// calmly updates pages as often as it is done in earnest: browsers are busy enough.
func calmly(o *console.Options) { o.Interval = 2 * time.Second }
