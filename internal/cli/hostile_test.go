package cli_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/relay"
)

const (
	// evil is text made to hurt a terminal or a page; badText is no text at all.
	evil    = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>\u202egnp\r\n'; DROP TABLE audit; --"
	badText = "a\xff\xfe"
	// secret is in every payload and nowhere else: it must be in no error and no log.
	secret = "4111111111111111"
)

// hostile is a message made to hurt, and what becomes of it at each way into the outbox: refused with a text that contains
// this, or accepted ("").
type hostile struct {
	name string
	m    message.Message
	// headers are the message's as JSON, where only JSON can say them.
	headers string
	// The refusals of Enqueue, of the SQL functions and of `outbox add`; skipped where it is "-".
	enqueue, sql, add string
	// parked is why the relay parks what the SQL functions let pass.
	parked string
}

// everywhere is refused at all ways with one text, which the SQL functions say in their own words.
func everywhere(name string, m message.Message, fault, sql string) hostile {
	return hostile{name: name, m: m, enqueue: fault, sql: sql, add: fault}
}

func hostileMessages() []hostile {
	long, body := strings.Repeat("x", 300), []byte(`{"card":"`+secret+`"}`)
	big := make([]byte, message.MaxBody+1)
	with := func(change func(*message.Message)) message.Message {
		m := message.Message{Type: "item.made", Payload: body}
		change(&m)
		return m
	}
	headers := func(h message.Headers) message.Message { return with(func(m *message.Message) { m.Headers = h }) }
	cases := []hostile{
		{name: "a body over the limit", m: with(func(m *message.Message) { m.Payload = big }), enqueue: "Payload has 16777217 bytes", add: "Payload has 16777217 bytes", parked: "body has 16777217 bytes"},
		everywhere("no type", with(func(m *message.Message) { m.Type = "" }), "Type is empty", "type must have 1 to 255 bytes"),
		everywhere("a time that AMQP cannot carry", with(func(m *message.Message) { m.OccurredAt = time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC) }), "OccurredAt lies outside", "occurred_at must lie"),
		everywhere("a traceparent that is none", with(func(m *message.Message) { m.TraceParent = evil }), "TraceParent is not one", "traceparent must be one"),
		everywhere("headers of the broker", headers(message.Headers{"X-Death": []any{}}), `contain "X-Death"`, `headers contain "X-Death"`),
		everywhere("headers of Surefoot", headers(message.Headers{"sf-epoch": 1}), `contain "sf-epoch"`, `headers contain "sf-epoch"`),
		everywhere("a header's name of 300 bytes", headers(message.Headers{long: 1}), "over 255 bytes", "over 255 bytes"),
		everywhere("a header without a name", headers(message.Headers{"": 1}), "which is empty", "which is empty"),
		everywhere("a header's name with a NUL", headers(message.Headers{"a\x00": 1}), "not UTF-8", "unsupported Unicode escape"),
		everywhere("a header with a NUL", headers(message.Headers{"a": []any{"\x00"}}), "contains a NUL byte", "unsupported Unicode escape"),
		{name: "a header that is no text", m: headers(message.Headers{"a": badText}), enqueue: "is not valid UTF-8", sql: "invalid byte sequence", add: "is not valid UTF-8"},
		{name: "headers of 128 KiB", m: headers(message.Headers{"a": strings.Repeat("x", 128<<10)}), enqueue: "limit of", add: "limit of", parked: "limit of"},
		{name: "headers of 300 KiB", m: headers(message.Headers{"a": strings.Repeat("x", 300<<10)}), enqueue: "limit of", sql: "more than 256 KiB", add: "limit of"},
		{name: "more headers than a Go client receives", m: headers(manyHeaders(9000)), enqueue: "more than 4096 entries", add: "more than 4096 entries", parked: "more than 4096 entries"},
		{name: "a list longer than a Go client receives", m: headers(message.Headers{"a": make([]any, 9000)}), enqueue: "more than 4096 entries", add: "more than 4096 entries", parked: "more than 4096 entries"},
		{name: "headers of 40 KiB", m: headers(message.Headers{"a": strings.Repeat("x", 40<<10)}), enqueue: "more than the limit of 32768", add: "more than the limit of 32768", parked: "more than the limit of 32768"},
		{name: "deep headers", m: headers(nested(20)), headers: deepJSON(20), enqueue: "nested more than 16", add: "nested more than 16", parked: "nested more than 16"},
		{name: "headers deeper than Go reads", m: headers(nested(12_000)), headers: deepJSON(12_000), enqueue: "nested more than 16", add: "nested too deep", parked: "nested more than 16|max depth"},
		{name: "headers deeper than the database reads", m: headers(nested(40_000)), headers: deepJSON(40_000), enqueue: "nested more than 16", sql: "stack depth limit", add: "nested too deep"},
		{name: "a number of 70 bits", headers: `{"n":1180591620717411303424}`, m: with(func(*message.Message) {}), enqueue: "-", add: "64 signed bits", parked: "64 signed bits"},
		{name: "an unsigned number of 64 bits", headers: `{"n":18446744073709551615}`, m: headers(message.Headers{"n": uint64(math.MaxUint64)}), enqueue: "64 signed bits", add: "64 signed bits", parked: "64 signed bits"},
		{name: "a number without bounds", headers: `{"n":1e400}`, m: with(func(*message.Message) {}), enqueue: "-", add: "out of range", parked: "out of range"},
		{name: "no number", m: headers(message.Headers{"a": []any{float32(math.Inf(-1))}}), headers: `{"a":{"$float":"NaN"}}`, enqueue: "infinite or none", add: "infinite or none", parked: "infinite or none"},
		{name: "a forged tag", headers: `{"a":{"$bytes":"` + "\\u001b[2J" + `"}}`, m: with(func(*message.Message) {}), enqueue: "-", add: "base64", parked: "base64"},
		{name: "headers that are a list", headers: `[1]`, m: with(func(*message.Message) {}), enqueue: "-", sql: "not a JSON object", add: "not a JSON object"},
		{name: "a Go type that AMQP has not", m: headers(message.Headers{"a": struct{}{}}), enqueue: "type struct {}", sql: "-", add: "-"},

		// What is only ugly passes, and arrives as it was.
		{name: "evil text", m: message.Message{
			Type: evil, Key: evil, RoutingKey: evil, Source: evil, CorrelationID: evil, CausationID: evil, RequestID: evil, ContentType: evil,
			Payload: []byte(`"` + secret + `"`), Headers: message.Headers{evil: evil, "list": []any{evil, message.Headers{evil: evil}}},
		}},
		{name: "headers of every type", m: headers(message.Headers{
			"nil": nil, "bool": true, "int": 1 << 53, "int8": int8(-8), "int16": int16(-16), "int32": int32(-32), "int64": int64(math.MinInt64), "uint8": uint8(8),
			"uint16": uint16(16), "uint32": uint32(math.MaxUint32), "beyond 2^53": int64(1<<53 + 1), "float32": float32(0.5), "float64": math.MaxFloat64, "whole": float64(1 << 60),
			"text": "t", "bytes": []byte(badText), "time": time.Unix(253402300799, 0), "list": []any{nil, 1, []any{"x"}}, "table": message.Headers{"$map": message.Headers{}},
		})},
		{name: "deep JSON", m: with(func(m *message.Message) {
			m.Payload = []byte(strings.Repeat("[", 5000) + secret + strings.Repeat("]", 5000))
		})},
		{name: "JSON deeper than Go reads", m: with(func(m *message.Message) {
			m.Payload = []byte(strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000))
		}), add: "nested too deep"},
		{name: "huge JSON", m: with(func(m *message.Message) {
			m.Payload = []byte("[" + strings.Repeat(secret+",", 200_000) + "1]")
		})},
		{name: "numbers beyond 2^53", m: with(func(m *message.Message) {
			m.Payload = []byte(`{"n":9007199254740993,"f":1e400,"d":0.10000000000000000001,"n":-0}`)
		})},
		{name: "a body that is no text", m: with(func(m *message.Message) { m.Payload = []byte("\x00\xff\x1b[2J") })},
		{name: "no body", m: with(func(m *message.Message) { m.Payload = []byte{} })},
		{name: "a key with quotes", m: with(func(m *message.Message) { m.Key = `'"\{},NULL` })},
	}
	return append(cases, hostileTexts(with)...)
}

// hostileTexts has each text field too long, not UTF-8, and with a NUL.
func hostileTexts(with func(func(*message.Message)) message.Message) (cases []hostile) {
	for _, field := range []struct {
		name, column string
		set          func(*message.Message, string)
	}{
		{"ID", "message_id", func(m *message.Message, s string) { m.ID = s }},
		{"Type", "type", func(m *message.Message, s string) { m.Type = s }},
		{"Key", "key", func(m *message.Message, s string) { m.Key = s }},
		{"Exchange", "exchange", func(m *message.Message, s string) { m.Exchange = s }},
		{"RoutingKey", "routing_key", func(m *message.Message, s string) { m.RoutingKey = s }},
		{"Source", "source", func(m *message.Message, s string) { m.Source = s }},
		{"CorrelationID", "correlation_id", func(m *message.Message, s string) { m.CorrelationID = s }},
		{"ContentType", "content_type", func(m *message.Message, s string) { m.ContentType = s }},
		{"CausationID", "causation_id", func(m *message.Message, s string) { m.CausationID = s }},
		{"RequestID", "request_id", func(m *message.Message, s string) { m.RequestID = s }},
		{"TraceState", "tracestate", func(m *message.Message, s string) {
			m.TraceParent, m.TraceState = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", s
		}},
	} {
		set := func(s string) message.Message { return with(func(m *message.Message) { field.set(m, s) }) }
		long := strings.Repeat("\x1b", 600)
		cases = append(cases,
			everywhere(field.name+" of 600 bytes", set(long), field.name+" has 600 bytes", field.column+" must have"),
			everywhere(field.name+" that is no text", set(badText), "not valid UTF-8", "invalid byte sequence"),
			everywhere(field.name+" with a NUL", set("a\x00b"), field.name+" contains a NUL byte", "invalid byte sequence"))
	}
	return cases
}

func nested(depth int) message.Headers {
	h := message.Headers{"a": 1}
	for range depth {
		h = message.Headers{"a": h}
	}
	return h
}

func deepJSON(depth int) string {
	return strings.Repeat(`{"a":`, depth) + "1" + strings.Repeat("}", depth)
}

func manyHeaders(n int) message.Headers {
	h := message.Headers{}
	for i := range n {
		h[fmt.Sprint("header-", i)] = nil
	}
	return h
}

// json are the headers as the SQL functions and lines take them. What HeadersJSON refuses is said as plain JSON would.
func (h *hostile) json(t *testing.T) *string {
	t.Helper()
	text := h.headers
	if text == "" && len(h.m.Headers) > 0 {
		data, err := message.HeadersJSON(h.m.Headers)
		if err != nil {
			data, err = json.Marshal(h.m.Headers)
			require.NoError(t, err)
		}
		text = strings.ReplaceAll(string(data), `\ufffd`, "\xff")
	}
	if text == "" {
		return nil
	}
	return &text
}

// A message that is hostile in any of these ways is refused with a clear error, or parked, or arrives as it is: at each way
// into the outbox, beside good messages in the same transactions and shards, which all arrive. Nothing that is said or shown
// of it holds a control character or a payload.
func TestHostileMessagesAtEveryWayIntoTheOutbox(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	s := newHostileStage(t)
	taken := tap(t, broker)
	for _, h := range hostileMessages() {
		for way, enqueue := range map[string]func(*hostile, message.Message) error{"Enqueue": s.one, "batch": s.batch, "sql": s.sql, "outbox add": s.add} {
			s.try(&h, way, enqueue)
		}
	}
	logs := relayUntilTheOutboxIsEmpty(t, s.db, broker)
	require.NotContains(t, logs(), secret)
	got := taken()
	for id, m := range s.sent {
		d, arrived := got[id]
		require.True(t, arrived, id)
		requireSame(t, m, d)
	}
	require.Equal(t, len(s.sent), len(got), "and nothing else") //nolint:testifylint // Len would print all bodies
	for id, why := range s.parked {
		shown := s.command("", "show", id)
		require.Zero(t, shown.code, "%s: %s", id, shown.stderr)
		require.Regexp(t, `(?m)^state +dead$`, shown.stdout, id)
		require.Regexp(t, `(?m)^error +.*(`+why+`)`, shown.stdout, id)
		harmless(t, shown.stdout)
		harmless(t, s.command("", "show", id, "-o", "json").stdout)
	}
	for _, format := range []string{"table", "json", "jsonl", "name"} {
		list := s.command("", "ls", "-o", format)
		require.Zero(t, list.code, list.stderr)
		harmless(t, list.stdout)
		harmless(t, list.stderr)
	}
	require.Equal(t, len(s.parked), strings.Count(s.command("", "ls", "--state", "dead", "-o", "name").stdout, "\n"))
}

// hostileStage sends messages in every way and keeps what must become of them.
type hostileStage struct {
	*testing.T
	db      testkit.DB
	box     *outbox.Outbox
	command func(stdin string, args ...string) result
	goods   int
	sent    map[string]message.Message
	parked  map[string]string // the reasons, as regular expressions
}

func newHostileStage(t *testing.T) *hostileStage {
	t.Helper()
	db := testkit.Database(t)
	box, err := outbox.New(outbox.Options{Schema: db.Schema})
	require.NoError(t, err)
	return &hostileStage{T: t, db: db, box: box, command: outboxOf(t, db), sent: map[string]message.Message{}, parked: map[string]string{}}
}

// good is a neighbour of what is hostile.
func (s *hostileStage) good() message.Message {
	s.goods++
	m := message.Message{ID: fmt.Sprint("good-", s.goods), Type: "item.made", Payload: []byte("1")}
	s.sent[m.ID] = m
	return m
}

// try sends a message in one way and checks that it is refused, or notes what must become of it.
func (s *hostileStage) try(h *hostile, way string, enqueue func(*hostile, message.Message) error) {
	s.Helper()
	refusal := map[string]string{"Enqueue": h.enqueue, "batch": h.enqueue, "sql": h.sql, "outbox add": h.add}[way]
	if refusal == "-" {
		return
	}
	m := h.m
	if m.ID == "" {
		m.ID = h.name + " by " + way
	}
	err := enqueue(h, m)
	switch {
	case refusal != "":
		require.ErrorContains(s, err, refusal, "%s by %s", h.name, way)
		require.NotContains(s, err.Error(), secret, "%s by %s", h.name, way)
		harmless(s.T, err.Error())
		return
	case way == "sql" && h.parked != "":
		s.parked[m.ID] = h.parked
	default:
		s.sent[m.ID] = m
	}
	require.NoError(s, err, "%s by %s", h.name, way)
}

// one enqueues a message by itself. A refusal leaves the transaction fit for others.
func (s *hostileStage) one(_ *hostile, m message.Message) (refused error) {
	err := pgx.BeginFunc(s.Context(), s.db.Pool, func(tx pgx.Tx) error {
		_, refused = s.box.Enqueue(s.Context(), tx, m)
		_, err := s.box.Enqueue(s.Context(), tx, s.good())
		return err
	})
	require.NoError(s, err)
	return refused
}

// batch enqueues it between others, all or none of them.
func (s *hostileStage) batch(_ *hostile, m message.Message) error {
	before, after := s.good(), s.good()
	err := pgx.BeginFunc(s.Context(), s.db.Pool, func(tx pgx.Tx) error {
		_, err := s.box.Enqueue(s.Context(), tx, before, m, after)
		return err
	})
	if err != nil {
		delete(s.sent, before.ID)
		delete(s.sent, after.ID)
	}
	return err
}

func (s *hostileStage) sql(h *hostile, m message.Message) error {
	var at *time.Time
	if !m.OccurredAt.IsZero() {
		at = &m.OccurredAt
	}
	_, err := s.db.Pool.Exec(s.Context(), `SELECT `+s.db.Schema+`.enqueue($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)`,
		m.Type, m.Payload, m.Key, m.ID, h.json(s.T), m.Exchange, m.RoutingKey, m.ContentType, at, m.Source, m.CorrelationID, m.CausationID, m.RequestID,
		m.TraceParent, m.TraceState)
	return err
}

// add sends it by `outbox add` with another, both or none of them. What is refused is misuse, exit 2.
func (s *hostileStage) add(h *hostile, m message.Message) error {
	beside := s.good()
	got := s.command(fmt.Sprintf(`{"id":%q,"type":"item.made","payload":1}`, beside.ID)+"\n"+h.line(s.T, m), "add", "-o", "name")
	harmless(s.T, got.stdout)
	if got.code == cli.ExitDone {
		return nil
	}
	delete(s.sent, beside.ID)
	require.Equal(s, cli.ExitUsage, got.code, got.stderr)
	return errors.New(got.stderr)
}

func requireSame(t *testing.T, want message.Message, got amqp.Delivery) {
	t.Helper()
	sent, err := want.Publishing()
	require.NoError(t, err)
	require.Equal(t, string(sent.Body), string(got.Body), want.ID)
	require.Equal(t, []string{sent.Type, sent.AppId, sent.CorrelationId, sent.ContentType}, []string{got.Type, got.AppId, got.CorrelationId, got.ContentType}, want.ID)
	for name, value := range sent.Headers {
		if at, isTime := value.(time.Time); isTime {
			require.True(t, at.Equal(got.Headers[name].(time.Time)), name)
			continue
		}
		require.Equal(t, value, got.Headers[name], "%s: %q", want.ID, name)
	}
}

// line is the message as `outbox add` takes it; what is not UTF-8 stays so.
func (h *hostile) line(t *testing.T, m message.Message) string {
	t.Helper()
	members := map[string]any{
		"id": m.ID, "type": m.Type, "key": m.Key, "exchange": m.Exchange, "routing_key": m.RoutingKey, "source": m.Source, "correlation_id": m.CorrelationID,
		"causation_id": m.CausationID, "request_id": m.RequestID, "traceparent": m.TraceParent, "tracestate": m.TraceState, "content_type": m.ContentType,
	}
	if !m.OccurredAt.IsZero() {
		members["occurred_at"] = m.OccurredAt.Format(time.RFC3339)
	}
	head, err := json.Marshal(members)
	require.NoError(t, err)
	line := strings.TrimSuffix(strings.ReplaceAll(string(head), `\ufffd`, "\xff"), "}")
	if headers := h.json(t); headers != nil {
		line += `,"headers":` + *headers
	}
	if json.Valid(m.Payload) || strings.HasPrefix(string(m.Payload), "[[") {
		return line + `,"payload":` + string(m.Payload) + "}"
	}
	return line + `,"payload_base64":"` + base64.StdEncoding.EncodeToString(m.Payload) + `"}`
}

// tap binds a queue to everything and returns what it has received, by id.
func tap(t *testing.T, broker testkit.AMQP) (taken func() map[string]amqp.Delivery) {
	t.Helper()
	conn, err := amqp.Dial(broker.URL)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, ch.ExchangeDeclare("ex", "topic", true, false, false, false, nil))
	_, err = ch.QueueDeclare("tap", true, false, false, false, amqp.Table{"x-queue-type": "classic"})
	require.NoError(t, err)
	require.NoError(t, ch.QueueBind("tap", "#", "ex", false, nil))
	return func() map[string]amqp.Delivery {
		got := map[string]amqp.Delivery{}
		for {
			d, ok, err := ch.Get("tap", true)
			require.NoError(t, err)
			if !ok {
				return got
			}
			require.NotContains(t, got, d.MessageId, "twice")
			got[d.MessageId] = d
		}
	}
}

// relayUntilTheOutboxIsEmpty runs a relay until nothing is pending and what is parked is dead, and returns what it logged.
func relayUntilTheOutboxIsEmpty(t *testing.T, db testkit.DB, broker testkit.AMQP) (logs func() string) {
	t.Helper()
	log, logs := logText(t)
	r, err := relay.New(relay.Options{Pool: db.Pool, Schema: db.Schema, AMQPURL: broker.URL, Exchange: "ex", Attempts: 2, Backoff: 10 * time.Millisecond, MaxBody: message.MaxBody, Logger: log})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	defer func() { cancel(); require.NoError(t, <-done) }()
	testkit.EventuallyNil(t, 60*time.Second, "the outbox to be empty", func() error {
		var pending, retry int
		require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM `+db.Schema+`.outbox),
			(SELECT count(*) FROM `+db.Schema+`.outbox_parked WHERE state <> 'dead')`).Scan(&pending, &retry))
		if pending+retry > 0 {
			return fmt.Errorf("%d pending, %d to be tried again", pending, retry)
		}
		return nil
	})
	return logs
}

// harmless fails for what could hurt a terminal.
func harmless(t *testing.T, shown string) {
	t.Helper()
	for _, char := range shown {
		if char != '\n' && (unicode.IsControl(char) || unicode.Is(unicode.Bidi_Control, char)) {
			t.Fatalf("%q holds %U", shown, char)
		}
	}
	require.True(t, utf8.ValidString(shown), "%q", shown)
}

// logText is a logger and what it has written.
func logText(t *testing.T) (logger zerolog.Logger, text func() string) {
	t.Helper()
	written := new(testkit.Buffer)
	return zerolog.New(zerolog.MultiLevelWriter(written, testkit.LogWriter(t))), written.String
}
