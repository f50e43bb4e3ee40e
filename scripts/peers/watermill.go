package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	amqp091 "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"
)

// watermillPeer forwards from watermill-sql to watermill-amqp. The subscriber hands out the next message only when the last was acknowledged, and the
// publisher waits for each confirm, so that one topic runs at one confirm a time; keys spread over several topics run side by side.
//
// The schema with DeleteOnAck is no outbox: its ack deletes the whole batch that was read, also what a stop or a deadline left unpublished in it.
type watermillPeer struct{ *environment }

const (
	// watermillBatch is SubscribeBatchSize; the default of 100 repeats a query that sorts all waiting rows ten times as often.
	watermillBatch = 1000

	watermillPoll = 10 * time.Millisecond

	// watermillChunk is the number of rows that one transaction of a producer leaves.
	watermillChunk = 100
)

const watermillFind = `
SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename LIKE 'watermill\_%' ORDER BY length(tablename), tablename`

// The form of sql.Publisher's own insert. COMMIT every watermillChunk rows: the subscriber's cursor starts with the transaction.
const watermillFill = `
DO $fill$
BEGIN
    FOR n IN 1..%[2]d BY %[6]d LOOP
        SET LOCAL synchronous_commit = off;
        INSERT INTO %[1]s (uuid, payload, metadata, transaction_id)
        SELECT 'm' || i, convert_to('%[7]s', 'UTF8'), json_build_object('sf-key', 'k' || (i %% %[3]d)), pg_current_xact_id()
        FROM generate_series(n, least(n + %[6]d - 1, %[2]d)) i WHERE (i %% %[3]d) %% %[4]d = %[5]d;
        COMMIT;
    END LOOP;
END $fill$`

const watermillPending = `
SELECT count(*) FROM %s WHERE (transaction_id, "offset") > (SELECT last_processed_transaction_id, offset_acked FROM %s)`

func (w *watermillPeer) messages(topic string) string { return w.table("watermill_" + topic) }
func (w *watermillPeer) offsets(topic string) string  { return w.table("watermill_offsets_" + topic) }

func (w *watermillPeer) schemaAdapter(batch int) sql.DefaultPostgreSQLSchema {
	return sql.DefaultPostgreSQLSchema{
		GenerateMessagesTableName: w.messages,
		GeneratePayloadType:       func(string) string { return "BYTEA" }, // "If your payload is not JSON, you can use BYTEA."
		SubscribeBatchSize:        batch,
	}
}

func (w *watermillPeer) offsetsAdapter() sql.DefaultPostgreSQLOffsetsAdapter {
	return sql.DefaultPostgreSQLOffsetsAdapter{GenerateMessagesOffsetsTableName: w.offsets}
}

func (w *watermillPeer) logging() watermill.LoggerAdapter {
	return watermill.NewSlogLogger(w.logger)
}

func (w *watermillPeer) subscriber(batch int) (*sql.Subscriber, error) {
	return sql.NewSubscriber(sql.BeginnerFromPgx(w.db), sql.SubscriberConfig{
		SchemaAdapter: w.schemaAdapter(batch), OffsetsAdapter: w.offsetsAdapter(), PollInterval: watermillPoll,
	}, w.logging())
}

func (w *watermillPeer) prepare(ctx context.Context, o options) error {
	old, err := w.tables(ctx)
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := w.exec(ctx, "DROP TABLE "+w.table(name)); err != nil {
			return err
		}
	}
	sub, err := w.subscriber(0)
	if err != nil {
		return err
	}
	for i := range o.topics {
		if err := w.prepareTopic(ctx, sub, fmt.Sprint("events", i)); err != nil {
			return err
		}
	}
	return sub.Close()
}

// prepareTopic makes the tables, and the offset with which every subscription begins, so that pending knows it.
func (w *watermillPeer) prepareTopic(ctx context.Context, sub *sql.Subscriber, topic string) error {
	if err := sub.SubscribeInitialize(topic); err != nil {
		return err
	}
	queries, err := w.offsetsAdapter().BeforeSubscribingQueries(sql.BeforeSubscribingQueriesParams{Topic: topic})
	if err != nil {
		return err
	}
	for _, q := range queries {
		if _, err := w.db.Exec(ctx, q.Query, q.Args...); err != nil {
			return err
		}
	}
	return nil
}

func (w *watermillPeer) tables(ctx context.Context) ([]string, error) {
	rows, err := w.db.Query(ctx, watermillFind, w.schema)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// topics are those that prepare made.
func (w *watermillPeer) topics(ctx context.Context) (topics []string, err error) {
	tables, err := w.tables(ctx)
	for _, t := range tables {
		if name := strings.TrimPrefix(t, "watermill_"); !strings.HasPrefix(name, "offsets_") {
			topics = append(topics, name)
		}
	}
	if err == nil && len(topics) == 0 {
		err = fmt.Errorf("schema %s has no topic: run prepare first", w.schema)
	}
	return topics, err
}

func (w *watermillPeer) fill(ctx context.Context, o options) error {
	topics, err := w.topics(ctx)
	if err != nil {
		return err
	}
	for i, topic := range topics {
		fill := fmt.Sprintf(watermillFill, w.messages(topic), o.rows, o.keys, len(topics), i, watermillChunk*len(topics), payload(o.bytes))
		if err := w.exec(ctx, fill); err != nil {
			return err
		}
		if err := w.vacuum(ctx, w.messages(topic)); err != nil {
			return err
		}
	}
	return nil
}

func (w *watermillPeer) drain(ctx context.Context, o options) (result, error) {
	if o.batch == 0 {
		o.batch = watermillBatch
	}
	topics, err := w.topics(ctx)
	if err != nil {
		return result{}, err
	}
	publishers, closeAll, err := w.publishers(min(o.connections, len(topics)), len(topics))
	if err != nil {
		return result{}, err
	}
	defer closeAll()
	before := make([]int64, len(topics))
	for i, topic := range topics {
		if before[i], err = w.pending(ctx, topic); err != nil {
			return result{}, err
		}
	}

	settled := newTally(o.window)
	group, ctx := errgroup.WithContext(ctx)
	for i, topic := range topics {
		group.Go(func() error {
			return w.forward(ctx, topic, before[i], publishers[i%len(publishers)], o.batch, settled)
		})
	}
	err = group.Wait()
	return settled.result(), err
}

// forward moves a topic's messages until none is left or the window is over.
func (w *watermillPeer) forward(ctx context.Context, topic string, before int64, out *amqp.Publisher, batch int, settled *tally) error {
	sub, err := w.subscriber(batch)
	if err != nil {
		return err
	}
	messages, err := sub.Subscribe(ctx, topic)
	if err != nil {
		return err
	}
	all, err := w.acknowledge(ctx, topic, before, messages, out, settled)
	if err != nil {
		return err
	}
	if all {
		settled.add(int(before))
		return sub.Close()
	}
	if err := sub.Close(); err != nil { // commits what is acknowledged
		return err
	}
	after, err := w.pending(ctx, topic)
	settled.add(int(before - after))
	return err
}

// acknowledge publishes messages and reports whether all that were waiting are settled; they are not when the window is over.
func (w *watermillPeer) acknowledge(ctx context.Context, topic string, left int64, messages <-chan *message.Message, out *amqp.Publisher, settled *tally) (bool, error) {
	for ; left > 0; left-- {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-settled.end():
			return false, nil
		case msg := <-messages:
			if err := out.Publish(routingKey, msg); err != nil {
				return false, fmt.Errorf("publish %s: %w", msg.UUID, err)
			}
			msg.Ack()
		}
	}
	return true, w.awaitCommit(ctx, topic)
}

// awaitCommit returns when the offset of the last batch is stored: closing at once could take its last acknowledgements back.
func (w *watermillPeer) awaitCommit(ctx context.Context, topic string) error {
	for {
		left, err := w.pending(ctx, topic)
		if err != nil || left == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

func (w *watermillPeer) pending(ctx context.Context, topic string) (n int64, err error) {
	err = w.db.QueryRow(ctx, fmt.Sprintf(watermillPending, w.messages(topic), w.offsets(topic))).Scan(&n)
	return n, err
}

// publishers opens n connections; ChannelPoolSize keeps channels open, without it each publish opens and closes one.
func (w *watermillPeer) publishers(n, topics int) (publishers []*amqp.Publisher, closeAll func(), err error) {
	closeAll = func() {
		for _, p := range publishers {
			_ = p.Close() // everything is confirmed by now, or the command has failed already
		}
	}
	config := amqp.NewDurableTopicConfig(w.amqpURL, w.exchange, "")
	config.Publish.ConfirmDelivery = true
	config.Publish.ChannelPoolSize = (topics + n - 1) / n
	config.Publish.Mandatory = true // on the wire as with the others; the publisher itself does not look at returns
	config.Marshaler = amqp.DefaultMarshaler{PostprocessPublishing: named}
	config.TopologyBuilder = &existing{}
	for range n {
		p, err := amqp.NewPublisher(config, w.logging())
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		publishers = append(publishers, p)
	}
	return publishers, closeAll, nil
}

// named puts the message id where the other peers have it.
func named(p amqp091.Publishing) amqp091.Publishing {
	p.MessageId, _ = p.Headers[amqp.DefaultMessageUUIDHeaderKey].(string)
	p.Type = routingKey
	return p
}

// existing is a topology that is not made here, only looked at once.
type existing struct{ amqp.DefaultTopologyBuilder }

func (*existing) ExchangeDeclare(channel *amqp091.Channel, exchange string, _ amqp.Config) error {
	if err := channel.ExchangeDeclarePassive(exchange, amqp091.ExchangeTopic, true, false, false, false, nil); err != nil {
		return fmt.Errorf("SUREFOOT_BENCH_EXCHANGE: %w", err)
	}
	return nil
}
