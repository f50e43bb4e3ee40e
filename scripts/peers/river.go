package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
	"golang.org/x/sync/errgroup"
)

// riverPeer uses River as an outbox: a job is inserted with the business row, and its worker publishes and waits for the confirm. With thousands of
// workers the confirms are pipelined, and River settles completed jobs in batches of its own.
type riverPeer struct{ *environment }

const (
	// River's own benchmark (cmd/river/riverbench) fetches this often and says that these "have an outsized effect on results". It has 2,000 workers,
	// which do nothing; ours wait for a confirm, and 5,000 were a little faster. A cooldown of 20 or 100 ms, 10,000 workers, two clients and one
	// connection to the broker differ from that by less than the spread.
	riverFetchCooldown = 2 * time.Millisecond
	riverFetchPoll     = 20 * time.Millisecond

	// riverEvents is the room for events of settled jobs; the documentation of SubscribeConfig says that what overflows it is dropped.
	riverEvents = 75_000

	riverInsertBatch = 5000

	// riverQuiet is how long no event may come before the table itself is asked.
	riverQuiet = time.Second
)

const riverPending = `SELECT count(*) FROM %s WHERE state NOT IN ('completed', 'cancelled', 'discarded')`

// publishArgs is the job: a message, its payload as text, which JSON carries more cheaply than bytes.
type publishArgs struct {
	MessageID string `json:"message_id"`
	Key       string `json:"key"`
	Payload   string `json:"payload"`
}

func (publishArgs) Kind() string { return "publish" }

func (r *riverPeer) prepare(ctx context.Context, _ options) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(r.db), &rivermigrate.Config{Schema: r.schema, Logger: r.logger})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionDown, &rivermigrate.MigrateOpts{TargetVersion: -1}); err != nil {
		return fmt.Errorf("drop River's tables: %w", err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("make River's tables: %w", err)
	}
	return nil
}

func (r *riverPeer) fill(ctx context.Context, o options) error {
	client, err := river.NewClient(riverpgxv5.New(r.db), &river.Config{Schema: r.schema, Logger: r.logger})
	if err != nil {
		return err
	}
	body := payload(o.bytes)
	for first := 1; first <= o.rows; first += riverInsertBatch {
		jobs := make([]river.InsertManyParams, 0, riverInsertBatch)
		for i := first; i < first+riverInsertBatch && i <= o.rows; i++ {
			jobs = append(jobs, river.InsertManyParams{Args: publishArgs{fmt.Sprint("m", i), fmt.Sprint("k", i%o.keys), body}})
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			return fmt.Errorf("insert jobs: %w", err)
		}
	}
	return r.vacuum(ctx, r.table("river_job"))
}

func (r *riverPeer) drain(ctx context.Context, o options) (result, error) {
	worker, closeAll, err := r.worker(o)
	if err != nil {
		return result{}, err
	}
	defer closeAll()
	before, err := r.pending(ctx)
	if err != nil {
		return result{}, err
	}
	clients, events, err := r.clients(o, worker)
	if err != nil {
		return result{}, err
	}

	settled := newTally(o.window)
	for _, c := range clients {
		if err := c.Start(ctx); err != nil {
			return result{}, fmt.Errorf("start River: %w", err)
		}
	}
	err = r.follow(ctx, events, before, settled)
	if stopped := stop(ctx, clients); err == nil {
		err = stopped
	}
	if err != nil {
		return result{}, err
	}
	for len(events) > 0 { // what was settled during the stop
		<-events
		settled.add(1)
	}
	after, err := r.pending(ctx)
	outcome := settled.result()
	outcome.Rows = before - after // an event may have been dropped, the table knows
	return outcome, err
}

// follow returns when all pending jobs are settled or the window is over.
func (r *riverPeer) follow(ctx context.Context, events <-chan *river.Event, pending int64, settled *tally) error {
	tick := time.NewTicker(riverQuiet)
	defer tick.Stop()
	for seen := int64(0); settled.result().Rows < pending; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-settled.end():
			return nil
		case <-events:
			settled.add(1)
		case <-tick.C:
			if now := settled.result().Rows; now != seen {
				seen = now
				continue
			}
			if left, err := r.pending(ctx); err != nil || left == 0 {
				return err
			}
		}
	}
	return nil
}

func (r *riverPeer) pending(ctx context.Context) (n int64, err error) {
	err = r.db.QueryRow(ctx, fmt.Sprintf(riverPending, r.table("river_job"))).Scan(&n)
	return n, err
}

// clients returns clients that are not started, and the channel on which each settled job of theirs is an event.
func (r *riverPeer) clients(o options, worker *publishWorker) ([]*river.Client[pgx.Tx], <-chan *river.Event, error) {
	all := make(chan *river.Event, riverEvents)
	clients := make([]*river.Client[pgx.Tx], o.clients)
	for i := range clients {
		workers := river.NewWorkers()
		river.AddWorker(workers, worker)
		client, err := river.NewClient(riverpgxv5.New(r.db), &river.Config{
			Schema:            r.schema,
			Logger:            r.logger,
			Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: o.workers}},
			Workers:           workers,
			FetchCooldown:     riverFetchCooldown,
			FetchPollInterval: riverFetchPoll,
			ErrorHandler:      jobErrors{r.logger},
			JobTimeout:        -1, // "will not be cancelled": spares a timer per job
		})
		if err != nil {
			return nil, nil, err
		}
		events, _ := client.SubscribeConfig(&river.SubscribeConfig{ChanSize: riverEvents, Kinds: []river.EventKind{river.EventKindJobCompleted}})
		go func() {
			for e := range events { // closed when the client has stopped
				all <- e
			}
		}()
		clients[i] = client
	}
	return clients, all, nil
}

// jobErrors shows what River itself logs as information only: that a job failed and is tried again later.
type jobErrors struct{ logger *slog.Logger }

func (j jobErrors) HandleError(_ context.Context, _ *rivertype.JobRow, err error) *river.ErrorHandlerResult {
	j.logger.Error("job failed", "error", err)
	return nil
}

func (j jobErrors) HandlePanic(_ context.Context, _ *rivertype.JobRow, panicked any, _ string) *river.ErrorHandlerResult {
	j.logger.Error("job panicked", "panic", panicked)
	return nil
}

// stop lets jobs that are under way finish and be settled.
func stop(ctx context.Context, clients []*river.Client[pgx.Tx]) error {
	var group errgroup.Group
	for _, c := range clients {
		group.Go(func() error { return c.Stop(context.WithoutCancel(ctx)) })
	}
	return group.Wait()
}

// publishWorker publishes over several channels in turn.
type publishWorker struct {
	river.WorkerDefaults[publishArgs]
	out  []*publisher
	next atomic.Uint64
}

func (r *riverPeer) worker(o options) (*publishWorker, func(), error) {
	conns, closeAll, err := r.dial(o.connections)
	if err != nil {
		return nil, nil, err
	}
	w := &publishWorker{}
	for _, conn := range conns {
		out, err := r.newPublisher(conn, o.workers*o.clients)
		if err != nil {
			closeAll()
			return nil, nil, err
		}
		w.out = append(w.out, out)
	}
	return w, closeAll, nil
}

// Work publishes one message; an error makes River try again with its backoff.
func (w *publishWorker) Work(ctx context.Context, job *river.Job[publishArgs]) error {
	out := w.out[w.next.Add(1)%uint64(len(w.out))]
	confirm, err := out.publish(job.Args.MessageID, job.Args.Key, []byte(job.Args.Payload))
	if err != nil {
		return err
	}
	return out.landed(ctx, confirm, job.Args.MessageID)
}
