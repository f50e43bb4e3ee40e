package cli_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
)

// foreign are deliveries of producers that know nothing of Surefoot, or wish it ill. Type and body are the test's.
func foreign() map[string]amqp.Publishing {
	long, deep := strings.Repeat("x", 240), amqp.Table{"a": "x"}
	for range 30 {
		deep = amqp.Table{"a": deep, "l": []any{amqp.Table{}}}
	}
	many := amqp.Table{}
	for i := range 8192 {
		many[strconv.Itoa(i)] = nil
	}
	cases := map[string]amqp.Publishing{
		"evil":    texts(evil),
		"no text": texts(badText + "\x00"),
		"long":    texts(long),
		"headers of every type": {Headers: amqp.Table{
			"nil": nil, "bool": true, "byte": byte(1), "int8": int8(-1), "int16": int16(-1), "uint16": uint16(1), "int32": int32(-1), "uint32": uint32(math.MaxUint32),
			"int64": int64(math.MinInt64), "beyond": int64(1<<53 + 1), "float32": float32(0.5), "float64": math.MaxFloat64, "decimal": amqp.Decimal{Scale: 255, Value: -1},
			"bytes": []byte(badText), "time": time.Unix(1<<61, 0), "past": time.Unix(-1<<61, 0), "list": []any{nil, []any{}, amqp.Table{}}, "table": amqp.Table{"": ""}, "": "no name",
		}},
		"headers of 128 KiB":   {Headers: amqp.Table{"big": strings.Repeat("x", 130_700)}},
		"most headers":         {Headers: many},
		"deepest headers":      {Headers: deep},
		"expires":              {Expiration: "3600000", Priority: 255, DeliveryMode: amqp.Transient, ReplyTo: "nowhere", ContentEncoding: "gzip"},
		"a time long after us": {Timestamp: time.Unix(1<<61, 0)},
		"a death in 3.x":       {Headers: oldDeath("expired", "orders.saga.retry", time.Now())},
		"a death in 4.x": {Headers: amqp.Table{
			"x-death": oldDeath("delivery_limit", "orders.saga", time.Now())["x-death"], "x-first-death-reason": "delivery_limit", "x-first-death-queue": "orders.saga",
			"x-first-death-exchange": "", "x-last-death-reason": "expired", "x-last-death-queue": "orders.saga.retry", "x-last-death-exchange": evil,
			"x-delivery-count": int64(math.MaxInt64), "x-acquired-count": int64(math.MinInt64), "x-opt-partition-key": evil,
		}},
		"a death before 3.5":   {Headers: amqp.Table{"x-death": []any{amqp.Table{"reason": "rejected", "queue": "orders.saga.retry", "exchange": evil, "routing-keys": []any{evil}}}}},
		"nonsense of a death":  {Headers: amqp.Table{"x-death": []any{"x", 1, amqp.Table{"queue": 7, "count": "x", "time": evil, "routing-keys": evil}}}},
		"a death that is text": {Headers: amqp.Table{"x-death": evil}},
	}
	forged := map[string][]any{
		message.HeaderAttempts:      {"5abc", int64(-1), math.MaxFloat64, []any{}, int64(math.MaxInt64), int64(math.MinInt64), amqp.Decimal{Scale: 255, Value: 1}},
		message.HeaderNotBefore:     {evil, int64(math.MaxInt64), int64(math.MinInt64), 1e300, amqp.Table{}},
		message.HeaderRedriveCount:  {int64(math.MaxInt64), int64(math.MinInt64), evil},
		message.HeaderReprocess:     {evil, badText},
		message.HeaderAttemptLog:    {evil, []any{evil, amqp.Table{"n": evil, "at": int64(1), "class": []any{}}}, amqp.Table{}},
		message.HeaderDropped:       {int64(math.MaxInt64), evil},
		message.HeaderTraceParent:   {evil, strings.Repeat("0", 600)},
		message.HeaderKey:           {amqp.Table{}, strings.Repeat("k", 60_000)},
		message.HeaderErrorStack:    {strings.Repeat(evil, 1000), int64(1)},
		message.HeaderFirstFailedAt: {"0000-00-00T00:00:00Z", evil},
		"CC":                        {[]any{"nowhere"}},
		"x-delay":                   {int64(math.MaxInt64), evil},
	}
	for name, values := range forged {
		for i, value := range values {
			cases[fmt.Sprintf("%s %d", name, i)] = amqp.Publishing{Headers: amqp.Table{name: value}}
		}
	}
	return cases
}

// texts has one text wherever a text can be; the id is made unique later.
func texts(s string) amqp.Publishing {
	h := amqp.Table{s: s, "list": []any{s, amqp.Table{s: []byte(s)}}}
	for _, name := range []string{
		message.HeaderKey, message.HeaderRequestID, message.HeaderCausationID, message.HeaderTraceParent, message.HeaderTraceState, message.HeaderOriginExchange,
		message.HeaderOriginRoutingKey, message.HeaderErrorClass, message.HeaderErrorType, message.HeaderErrorMessage, message.HeaderErrorStack, message.HeaderFingerprint,
		message.HeaderFailedHost, message.HeaderFailedVersion, message.HeaderRedriveRun, message.HeaderOutbox, message.HeaderEpoch,
	} {
		h[name] = s
	}
	return amqp.Publishing{MessageId: s, AppId: s, CorrelationId: s, ContentType: s, ContentEncoding: s, ReplyTo: s, Headers: h}
}

// oldDeath is the history of a message as brokers before 4.0 took it from clients.
func oldDeath(reason, queue string, at time.Time) amqp.Table {
	entry := func(queue string) amqp.Table {
		return amqp.Table{"reason": reason, "queue": queue, "exchange": "shop.events", "count": int64(3), "time": at, "routing-keys": []any{"order.made"}, "original-expiration": "1000"}
	}
	return amqp.Table{"x-death": []any{entry(queue), entry("orders.saga.dlq"), entry("orders.saga")}}
}

// hostileBodies are bodies of a known type, and whether they are read.
func hostileBodies() map[string]bool {
	return map[string]bool{
		`{"card":"a","n":9007199254740993}`: true,
		`{"n":1e400}`:                       false,
		`{"n":18446744073709551616}`:        false,
		`{"card":` + secret + `}`:           false,
		`{"at":"` + secret + `"}`:           false,
		`{"card":"` + badText + `"}`:        false,
		``:                                  false,
		"\x00\x1b[2J":                       false,
		"null":                              false,
		strings.Repeat("[", 200_000):        false,
		strings.Repeat(`{"card":`, 20_000) + "1" + strings.Repeat("}", 20_000): false,
		`{"card":"` + strings.Repeat("x", 4<<20) + `"}`:                        true,
		`{"card":"a"}{"card":"b"}`:                                             false,
		"\xef\xbb\xbf{}":                                                       false,
	}
}

// order is what the handler reads.
type order struct {
	Card string    `json:"card"`
	N    int64     `json:"n"`
	At   time.Time `json:"at"`
}

// deliveriesStage is a topology with a consumer of which each handled message is known.
type deliveriesStage struct {
	*dlqStage
	logs    func() string
	options consumer.Options
	sent    int

	mu   sync.Mutex
	runs map[string]int // of handlers that ended well, by id
	seen map[string]bool
	n    int64 // the largest number that was read
}

func newDeliveriesStage(t *testing.T) *deliveriesStage {
	t.Helper()
	s := &deliveriesStage{dlqStage: &dlqStage{T: t, db: testkit.Database(t), broker: testkit.Broker(t)}, runs: map[string]int{}, seen: map[string]bool{}}
	e := s.env()
	e.ReadFile = env("topology: {exchange: shop.events, queues: [{name: orders.saga, bindings: ['order.*'], retry: [200ms]}]}\n").ReadFile
	got := run(t, e, "topology", "apply", "--yes")
	require.Zero(t, got.code, got.stderr)
	conn, err := amqp.Dial(s.broker.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s.ch, err = conn.Channel()
	require.NoError(t, err)
	require.NoError(t, s.ch.Confirm(false))
	log, logs := logText(t)
	s.logs = logs
	mux := consumer.NewMux(consumer.MuxOptions{})
	consumer.On(mux, "order.made", func(_ context.Context, _ pgx.Tx, m message.Message, o order) error { return s.handle(m, o, false) })
	consumer.On(mux, "order.flaky", func(_ context.Context, _ pgx.Tx, m message.Message, o order) error { return s.handle(m, o, true) })
	s.options = consumer.Options{
		Queue: "orders.saga", Handler: mux.Serve, URL: s.broker.URL, ManagementURL: s.broker.ManagementURL, Pool: s.db.Pool, Schema: s.db.Schema,
		Retry: []consumer.Tier{{Queue: "orders.saga.retry", Delay: 200 * time.Millisecond}}, Concurrency: 4, Prefetch: 20, Logger: log,
	}
	return s
}

// handle fails the first time where it is flaky, and counts.
func (s *deliveriesStage) handle(m message.Message, o order, flaky bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if flaky && !s.seen[m.ID] {
		s.seen[m.ID] = true
		return errors.New("not yet: " + evil)
	}
	s.runs[m.ID]++
	s.n = max(s.n, o.N)
	return nil
}

func (s *deliveriesStage) handled() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.runs)
}

func (s *deliveriesStage) send(p amqp.Publishing) {
	s.Helper()
	s.sent++
	confirm, err := s.ch.PublishWithDeferredConfirm("", "orders.saga", true, false, p)
	require.NoError(s, err)
	ok, err := confirm.WaitContext(s.Context())
	require.NoError(s, err)
	require.True(s, ok)
}

func (s *deliveriesStage) good() {
	s.Helper()
	s.send(amqp.Publishing{MessageId: fmt.Sprint("good-", s.sent), Type: "order.made", Body: []byte(`{"card":"a"}`)})
}

// fromThePage publishes as the management page does.
func (s *deliveriesStage) fromThePage(properties map[string]any, payload, encoding string) {
	s.Helper()
	var answer struct{ Routed bool }
	s.broker.API(s, "POST", "/api/exchanges/"+s.broker.Vhost+"/amq.default/publish", map[string]any{
		"properties": properties, "routing_key": "orders.saga", "payload": payload, "payload_encoding": encoding,
	}, &answer)
	require.True(s, answer.Routed)
	s.sent++
}

// settle runs the consumer until every message is handled or dead, and nothing is on its way.
func (s *deliveriesStage) settle() {
	s.Helper()
	c, err := consumer.New(s.options)
	require.NoError(s, err)
	ctx, cancel := context.WithCancel(s.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	defer func() { cancel(); require.NoError(s, <-done) }()
	testkit.EventuallyNil(s, 60*time.Second, "every message to be handled or dead", func() error {
		if dead, ok := s.depth("orders.saga.dlq"), len(s.handled()); dead+ok != s.sent {
			return fmt.Errorf("%d sent, %d handled, %d dead", s.sent, ok, dead)
		}
		return nil
	})
}

// sendAll sends everything that is hostile between good messages, and returns how many must be handled in the end.
func (s *deliveriesStage) sendAll() (handled int) {
	for name, p := range foreign() {
		s.good()
		id := p.MessageId
		p.MessageId = id + name
		p.Type, p.Body = "order.made", []byte(`{"card":`+secret+`}`) // malformed
		s.send(p)
		p.MessageId = id + name + " unknown"
		p.Type = message.Clip(id+name, message.MaxShortString)
		s.send(p)
		p.MessageId = id + name + " flaky" // goes round the retry queue
		p.Type, p.Body = "order.flaky", []byte(`{"card":"a"}`)
		s.send(p)
		handled += 2
		if name == message.HeaderAttempts+" 4" {
			handled-- // it claims to have used up its attempts
		}
	}
	for body, read := range hostileBodies() {
		s.good()
		s.send(amqp.Publishing{MessageId: fmt.Sprint("body-", s.sent), Type: "order.made", Body: []byte(body)})
		handled++
		if read {
			handled++
		}
	}
	s.send(amqp.Publishing{})
	s.send(amqp.Publishing{Type: "order.made", Body: []byte(`{}`)})
	s.send(amqp.Publishing{MessageId: "no type", Body: []byte(`{}`)})
	s.fromThePage(map[string]any{}, `{"card":"a"}`, "string")
	s.fromThePage(map[string]any{"message_id": "page", "type": "order.made", "headers": map[string]any{
		"n": json.Number("9007199254740993"), "big": json.Number("1e300"), "deep": map[string]any{"a": []any{evil, 1.5, true}}, "x-attempts": 1.0,
	}}, `{"card":"a"}`, "string")
	s.fromThePage(map[string]any{"message_id": "page-64", "type": "order.made", "content_type": evil, "delivery_mode": 1}, "AP8b", "base64")
	s.good()
	return handled + 2
}

// Whatever a foreign producer sends is handled or becomes a dead letter, by a process that stays alive, and the good messages
// between are handled once each. The dead letters can be listed, shown and redriven, and nothing that is said of them holds a
// control character or a payload.
func TestHostileDeliveriesHarmNobody(t *testing.T) {
	t.Parallel()
	s := newDeliveriesStage(t)
	want := s.sendAll()
	s.settle()
	logs := s.logs()
	done := s.handled()
	for id, runs := range done {
		require.Equal(t, 1, runs, "%q", id)
	}
	require.NotContains(t, logs, secret, "payloads are not for logs")
	require.Equal(t, int64(1<<53+1), s.n, "numbers keep their digits")
	require.Len(t, done, want)
	dead := s.depth("orders.saga.dlq")
	s.look(dead)

	redrive := s.run("redrive", "--queue", "orders.saga", "--include-repeaters", "--dry-run", "-o", "json")
	require.Zero(t, redrive.code, redrive.stderr)
	require.Contains(t, redrive.stdout, fmt.Sprintf(`"done": %d`, dead))
	redrive = s.run("redrive", "--queue", "orders.saga", "--include-repeaters", "--yes")
	harmless(t, redrive.stdout)
	harmless(t, redrive.stderr)
	require.Zero(t, redrive.code, redrive.stderr)
	require.Equal(t, []int{dead, 0}, []int{s.depth("orders.saga"), s.depth("orders.saga.dlq")})
	s.good()
	s.settle()
	require.Equal(t, dead-1, s.depth("orders.saga.dlq"), "they die again, each once, but for the one that forged its attempts")
	s.look(dead - 1)
}

// look lists and shows the dead letters in every format.
func (s *deliveriesStage) look(dead int) {
	s.Helper()
	for _, format := range []string{"table", "json", "jsonl", "name"} {
		for _, args := range [][]string{{"ls"}, {"ls", "--all"}, {"show", "--queue", "orders.saga", "--limit", "1000", "--payload", "all"}, {"show", "--queue", "orders.saga"}} {
			got := s.run(append(args, "-o", format)...)
			require.Zero(s, got.code, "%v: %s", args, got.stderr)
			harmless(s.T, got.stdout)
			harmless(s.T, got.stderr)
			switch {
			case format == "json":
				require.True(s, json.Valid([]byte(got.stdout)))
			case format == "jsonl" && len(args) > 5:
				require.Equal(s, dead, strings.Count(got.stdout, "\n"))
			}
		}
	}
	require.Equal(s, cli.ExitDone, s.run("show", "--queue", "orders.saga", "--id", evil+"evil", "--error-contains", "\x1b").code)
}
