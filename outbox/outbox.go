// Package outbox writes messages into the transactional outbox, in the caller's own transaction: they are
// published if, and only if, that transaction commits.
//
// Guarantees (docs/guarantees.md G1, G2):
//   - a committed message is published at least once and kept until the broker has confirmed and routed
//     it; one of a rolled-back transaction is never seen;
//   - messages of one key are published in commit order when their writers serialise before they call
//     Enqueue: on a lock of the business row, or with [Options.LockKeys]. Enqueue first and lock later is
//     undefined.
//
// Producers that must never see an event of a transaction that a failover took back need synchronous_commit
// = on, which is the server's default.
package outbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

const enqueueSQL pg.SQL = `SELECT @schema@.enqueue_batch($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`

// enqueueOneSQL is for a single message, the most frequent case: without arrays it takes half as long.
const enqueueOneSQL pg.SQL = `SELECT (@schema@.enqueue($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) IS NOT NULL)::integer`

// DuplicateRetention is how long an id enqueued with [Options.Once] is remembered.
const DuplicateRetention = 7 * 24 * time.Hour

// maxBody is what the table takes.
const maxBody = 128 << 20

// Options of an [Outbox].
type Options struct {
	// Schema that `surefoot migrate up` made. Default: that of the context, see [WithSchema], which inside a handler
	// is the consumer's; else "surefoot".
	Schema string
	// Source is written to messages that name none. Default: "".
	Source string
	// Exchange is written to messages that name none. Default: "", the relay's exchange.
	Exchange string
	// Once leaves out messages whose ID was enqueued with Once before and is still remembered (7 days).
	// Without it a second row of one ID is written, published, and made one effect by the consumer's
	// inbox. Messages must carry an ID of their own. Default: false.
	Once bool
	// LockKeys takes an advisory lock for each key, held to the end of the transaction, before ids are
	// drawn: order per key then follows commits also for writers that share no row lock. Keys share
	// 1,024 locks, so unrelated keys may now and then wait for each other. Default: false.
	LockKeys bool
	// MaxBody bounds a payload in bytes; at most 128 MiB, RabbitMQ's limit before 4.0. Default: 16 MiB,
	// its limit from 4.0.
	MaxBody int
}

// Outbox enqueues messages. The zero value works with all defaults. It holds no state and is safe for
// concurrent use.
type Outbox struct {
	options Options
}

// New returns an outbox, or an error that names the option that is wrong. It does no I/O.
func New(o Options) (*Outbox, error) {
	if err := pg.CheckSchema(o.Schema); err != nil {
		return nil, fmt.Errorf("outbox: %w", err)
	}
	if o.MaxBody < 0 || o.MaxBody > maxBody {
		return nil, fmt.Errorf("outbox: MaxBody is %d; use 1 to %d bytes, or 0 for %d", o.MaxBody, maxBody, message.MaxBody)
	}
	if err := (message.Message{Type: "t", Source: o.Source, Exchange: o.Exchange}).Validate(0); err != nil {
		return nil, fmt.Errorf("outbox options: %w", err)
	}
	return &Outbox{options: o}, nil
}

// Enqueue writes messages with all defaults. Inside a handler they go into the consumer's schema: see [WithSchema].
// Otherwise see [Outbox.Enqueue].
func Enqueue(ctx context.Context, tx pgx.Tx, msgs ...message.Message) error {
	_, err := new(Outbox).Enqueue(ctx, tx, msgs...)
	return err
}

// Enqueue writes messages into the outbox in the caller's transaction, in their order, with one round trip
// however many there are. It returns the number written, which is smaller than len(msgs) only with
// [Options.Once].
//
// Empty fields get their defaults; inside a handler, correlation, causation and request id are inherited
// from the message being handled; while a request is served, the request id is that of [message.WithRequestID]. The
// trace context is that of ctx. A message that the broker would choke on is refused with a [*message.InvalidError]
// before anything is written; then, as after any error of the database, roll the transaction back.
func (o *Outbox) Enqueue(ctx context.Context, tx pgx.Tx, msgs ...message.Message) (int, error) {
	if len(msgs) == 0 {
		return 0, nil
	}
	ctx, span := o.startSpan(ctx, msgs)
	defer span.End()
	written, err := o.write(ctx, tx, msgs)
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, "enqueue failed")
	}
	return written, err
}

func (o *Outbox) write(ctx context.Context, tx pgx.Tx, msgs []message.Message) (written int, err error) {
	now, err := databaseTime(ctx, tx, msgs)
	if err != nil {
		return 0, err
	}
	rows, err := o.rows(ctx, msgs, now)
	if err != nil {
		return 0, err
	}
	schema, err := o.schema(ctx)
	if err != nil {
		return 0, err
	}
	if len(msgs) == 1 {
		err = tx.QueryRow(ctx, enqueueOneSQL.In(schema), rows.first(o.options)...).Scan(&written)
	} else {
		err = tx.QueryRow(ctx, enqueueSQL.In(schema), rows.args(o.options)...).Scan(&written)
	}
	if err != nil {
		return 0, fmt.Errorf("enqueue: %w", explain(err, schema))
	}
	return written, nil
}

func (o *Outbox) startSpan(ctx context.Context, msgs []message.Message) (context.Context, trace.Span) {
	return otel.Tracer(telemetry.TracerName).Start(ctx, telemetry.SpanEnqueue,
		trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(attribute.Int(telemetry.AttrBatchCount, len(msgs))))
}

// explain turns the errors of a missing or foreign schema into what to do.
func explain(err error, schema string) error {
	switch resilience.SQLStateOf(err) {
	case "42883", pg.UndefinedSchema, pg.UndefinedTable:
		return fmt.Errorf("schema %s has no outbox of this version; run `surefoot migrate up`: %w", pg.Schema(schema), err)
	case pg.InsufficientPrivilege:
		return fmt.Errorf("this database role may not do that; to enqueue it needs USAGE on schema %s and EXECUTE on its functions enqueue and enqueue_batch: %w", pg.Schema(schema), err)
	}
	return err
}

// rows are the messages column by column, as the SQL function takes them.
type rows struct {
	ids, types, keys, exchanges, routingKeys, contentTypes, sources []string
	correlations, causations, requests, parents, states             []string
	occurred                                                        []time.Time
	headers                                                         []*string
	payloads                                                        [][]byte
}

// databaseTime is the time by which lifetimes are counted; it is asked for only when a message has one.
func databaseTime(ctx context.Context, tx pgx.Tx, msgs []message.Message) (now time.Time, err error) {
	if !slices.ContainsFunc(msgs, func(m message.Message) bool { return m.Lifetime > 0 }) {
		return time.Time{}, nil
	}
	if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return now, fmt.Errorf("enqueue: time of the database: %w", err)
	}
	return now, nil
}

func (o *Outbox) rows(ctx context.Context, msgs []message.Message, database time.Time) (*rows, error) {
	cause, handling := message.FromContext(ctx)
	parent, state := telemetry.TraceHeaders(ctx)
	request, now := message.RequestIDFrom(ctx), time.Now()
	r := newRows(len(msgs))
	for _, m := range msgs {
		if o.options.Once && m.ID == "" {
			return nil, &message.InvalidError{
				Type: message.Clip(m.Type, 64), Field: "ID",
				Reason: "is empty; Once needs an id of your own, for example a UUIDv5 of a business key",
			}
		}
		if m.RequestID == "" {
			m.RequestID = request
		}
		if handling {
			m = m.Inherit(cause)
		}
		if m.TraceParent == "" {
			m.TraceParent, m.TraceState = parent, state
		}
		if m.Lifetime > 0 && m.ExpiresAt.IsZero() {
			m.ExpiresAt = database.Add(m.Lifetime)
		}
		if err := r.add(o.withDefaults(m, now), o.options.MaxBody); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (o *Outbox) withDefaults(m message.Message, now time.Time) message.Message {
	if m.Source == "" {
		m.Source = o.options.Source
	}
	if m.Exchange == "" {
		m.Exchange = o.options.Exchange
	}
	return m.WithDefaults(now)
}

func newRows(n int) *rows {
	text := func() []string { return make([]string, 0, n) }
	return &rows{
		ids: text(), types: text(), keys: text(), exchanges: text(), routingKeys: text(), contentTypes: text(), sources: text(),
		correlations: text(), causations: text(), requests: text(), parents: text(), states: text(),
		occurred: make([]time.Time, 0, n), headers: make([]*string, 0, n), payloads: make([][]byte, 0, n),
	}
}

func (r *rows) add(m message.Message, maxBody int) error {
	if err := m.Validate(maxBody); err != nil {
		return err
	}
	headers, err := message.HeadersJSON(headersOf(m))
	if err != nil {
		return fmt.Errorf("encode headers of message %s: %w", message.Clip(m.ID, 64), err)
	}
	var text *string
	if headers != nil {
		s := string(headers)
		text = &s
	}
	payload := m.Payload
	if payload == nil {
		payload = []byte{} // an empty body, not NULL
	}
	r.ids, r.types, r.keys = append(r.ids, m.ID), append(r.types, m.Type), append(r.keys, m.Key)
	r.exchanges, r.routingKeys = append(r.exchanges, m.Exchange), append(r.routingKeys, m.RoutingKey)
	r.contentTypes, r.sources = append(r.contentTypes, m.ContentType), append(r.sources, m.Source)
	r.correlations, r.causations = append(r.correlations, m.CorrelationID), append(r.causations, m.CausationID)
	r.requests, r.occurred = append(r.requests, m.RequestID), append(r.occurred, m.OccurredAt)
	r.parents, r.states = append(r.parents, m.TraceParent), append(r.states, m.TraceState)
	r.headers, r.payloads = append(r.headers, text), append(r.payloads, payload)
	return nil
}

// headersOf are the user's with the expiry, which has no column of its own: few messages have one.
func headersOf(m message.Message) message.Headers {
	if m.ExpiresAt.IsZero() {
		return m.Headers
	}
	headers := message.Headers{message.HeaderExpiresAt: m.ExpiresAt.UnixMilli()}
	for name, value := range m.Headers {
		if name != message.HeaderExpiresAt {
			headers[name] = value
		}
	}
	return headers
}

func (r *rows) args(o Options) []any {
	return []any{
		r.ids, r.types, r.keys, r.exchanges, r.routingKeys, r.contentTypes, r.occurred, r.sources,
		r.correlations, r.causations, r.requests, r.parents, r.states, r.headers, r.payloads, o.Once, o.LockKeys,
	}
}

// first are the arguments of the function for a single message. NULL for once says that it was checked.
func (r *rows) first(o Options) []any {
	var once *bool
	if o.Once {
		once = &o.Once
	}
	return []any{
		r.types[0], r.payloads[0], r.keys[0], r.ids[0], r.headers[0], r.exchanges[0], r.routingKeys[0], r.contentTypes[0],
		r.occurred[0], r.sources[0], r.correlations[0], r.causations[0], r.requests[0], r.parents[0], r.states[0], once, o.LockKeys,
	}
}
