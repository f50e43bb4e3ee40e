package consumer

import (
	"context"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/dlqindex"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/topology"
)

const (
	// indexBacklog is how many rows may wait for the index; what comes beyond is left to the next scan, and counted in
	// surefoot_consumer_unindexed_total.
	indexBacklog = 5000
	indexBatch   = 500
	// indexLag is how long a row waits for others.
	indexLag = 200 * time.Millisecond
	// indexFlush bounds the last write at the end.
	indexFlush = time.Second
)

// indexer tells the index of what was dead-lettered, behind everything else: a letter is in its queue before it comes here,
// nothing waits for its row, and a row that is not written is added by the next scan.
type indexer struct {
	c       *Consumer
	store   *dlqindex.Store
	entries chan dlqindex.Entry
	queue   int32 // 0: not known yet
	vhost   string
	name    string // of the dead-letter queue, without its suffix
}

func newIndexer(c *Consumer, vhost string) *indexer {
	return &indexer{
		c: c, store: dlqindex.New(c.opts.Pool, c.opts.Schema), entries: make(chan dlqindex.Entry, indexBacklog),
		vhost: vhost, name: strings.TrimSuffix(c.opts.DeadLetters, topology.DLQSuffix),
	}
}

// add never waits.
func (x *indexer) add(p *amqp.Publishing, class string) {
	e := dlqindex.Of(dlqindex.Letter{
		ID: p.MessageId, Type: p.Type, Source: p.AppId, CorrelationID: p.CorrelationId, Timestamp: p.Timestamp,
		Headers: p.Headers, Body: p.Body, Class: class, DiedAt: message.Time(p.Headers, message.HeaderLastFailedAt),
	})
	select {
	case x.entries <- e:
	default:
		x.c.metrics.unindexed.Inc()
	}
}

// run writes until ctx ends, and then once what is left.
func (x *indexer) run(ctx context.Context) {
	for {
		select {
		case e := <-x.entries:
			x.writeOn(ctx, x.gather(ctx, e))
		case <-ctx.Done():
			x.last(ctx, nil)
			return
		}
		if ctx.Err() != nil {
			x.last(ctx, nil)
			return
		}
	}
}

// gather waits a moment for more.
func (x *indexer) gather(ctx context.Context, first dlqindex.Entry) []dlqindex.Entry {
	batch := []dlqindex.Entry{first}
	full := time.NewTimer(indexLag)
	defer full.Stop()
	for len(batch) < indexBatch {
		select {
		case e := <-x.entries:
			batch = append(batch, e)
		case <-full.C:
			return batch
		case <-ctx.Done():
			return batch
		}
	}
	return batch
}

// writeOn tries until the rows are written; a second write of what was written changes nothing.
func (x *indexer) writeOn(ctx context.Context, batch []dlqindex.Entry) {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := x.write(ctx, batch)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			x.last(ctx, batch)
			return
		}
		x.c.log.Warn().Err(err).Int("letters", len(batch)).Msg("dead letters not indexed yet, trying again; they are in their queue")
		pause.For(ctx, pause.Jitter(wait))
	}
}

func (x *indexer) write(ctx context.Context, batch []dlqindex.Entry) (err error) {
	if x.queue == 0 {
		if x.queue, err = x.store.Queue(ctx, x.vhost, x.name); err != nil {
			return err
		}
	}
	return x.store.Died(ctx, x.queue, batch)
}

// last writes what is left when the consumer stops, once.
func (x *indexer) last(ctx context.Context, batch []dlqindex.Entry) {
	for {
		select {
		case e := <-x.entries:
			batch = append(batch, e)
			continue
		default:
		}
		break
	}
	if len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), indexFlush)
	defer cancel()
	if err := x.write(ctx, batch); err != nil {
		x.c.metrics.unindexed.Add(float64(len(batch)))
		x.c.log.Warn().Err(err).Int("letters", len(batch)).Msg("dead letters not indexed; the next scan adds them")
	}
}
