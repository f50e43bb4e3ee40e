package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	inboxSQL  pg.SQL = `SELECT count(*) FROM @schema@.inbox`
	postedSQL pg.SQL = `SELECT count(DISTINCT id) FROM @schema@.effects`

	workerFile = "worker.yaml"
	postLimit  = 30 * time.Minute
)

// posting is one arm of the benchmark of HTTP workers: who takes from the queue and posts, and what it leaves.
type posting struct {
	name    string
	program func(s *stage, schema string, box *postbox) (program, error)
	// recorded counts the messages that it has written down as done; empty: it writes nothing.
	recorded pg.SQL
	// stays says that it does not end by itself.
	stays bool
}

func (b *Bench) worker(ctx context.Context, s *stage, r *Report) error {
	r.Load = Load{Rows: b.o.Rows, Bytes: b.o.Bytes, Keys: b.o.Keys, Prefetch: b.o.Prefetch, Workers: b.o.Workers, Rounds: b.o.Rounds}
	bare := func(mode consumeMode) func(*stage, string, *postbox) (program, error) {
		return func(s *stage, schema string, box *postbox) (program, error) {
			return s.arm(schema, armConsume, consumeTask{
				Mode: mode, Queue: s.work(), Rows: s.o.Rows, Prefetch: s.o.Prefetch, Workers: s.o.Workers, Post: box.url,
			}), nil
		}
	}
	var turns []turn
	for _, p := range []posting{
		{name: "bare post with row", program: bare(modeBareRow), recorded: postedSQL},
		{name: "HTTP worker", program: (*stage).consumeRun, recorded: inboxSQL, stays: true},
		{name: "bare post", program: bare(modeBare)},
	} {
		turns = append(turns, turn{p.name, func(ctx context.Context, round int) (Sample, error) { return s.postOnce(ctx, p, round) }})
	}
	if err := s.take(ctx, r, turns, nil); err != nil {
		return err
	}
	r.compare("HTTP worker", "bare post with row", atLeast(0.9))
	r.compare("HTTP worker", "bare post", nil)
	r.figure("peak memory, HTTP worker", "MiB", r.amounts(Memory, "HTTP worker"), atMost(goalMemory))
	return nil
}

// consumeRun is the binary's own role, with a configuration that names the queue and the endpoint. YAML reads JSON.
func (s *stage) consumeRun(schema string, box *postbox) (program, error) {
	work := s.work()
	text, err := json.Marshal(map[string]any{
		"database": map[string]any{"max_conns": s.o.Workers + consumerConns},
		"topology": map[string]any{"exchange": s.exchange(), "queues": []any{map[string]any{
			"name": work.Name, "owner": work.Owner, "prefetch": work.Prefetch, "concurrency": work.Concurrency,
			"handler_timeout": handlerTimeout.String(), "target": map[string]any{"http": map[string]any{"url": box.url}},
		}}},
	})
	if err != nil {
		return program{}, err
	}
	if err := os.WriteFile(filepath.Join(s.dir, workerFile), text, 0o600); err != nil {
		return program{}, fmt.Errorf("write the worker's configuration: %w", err)
	}
	return s.command(schema, "consume", "run", "--config", workerFile), nil
}

// postOnce lets one program post a full queue.
func (s *stage) postOnce(ctx context.Context, p posting, round int) (Sample, error) {
	box, err := openPostbox(ctx, s.o.Rows)
	if err != nil {
		return Sample{}, err
	}
	defer box.close()
	schema, err := s.prepareConsume(ctx, "worker", true, s.o.Rows)
	if err != nil {
		return Sample{}, err
	}
	run, err := p.program(s, schema, box)
	if err != nil {
		return Sample{}, err
	}
	before := s.meter.read()
	process, err := s.start(ctx, run)
	if err != nil {
		return Sample{}, err
	}
	defer process.kill()
	took, err := s.awaitPosted(ctx, process, box)
	if err == nil {
		err = s.endPosting(ctx, p, schema, process)
	}
	if err != nil {
		return Sample{}, err
	}
	used := s.meter.read().since(before)
	sample := Sample{Round: round, Rows: s.o.Rows, Seconds: took.Seconds(), Rate: float64(s.o.Rows) / took.Seconds()}
	sample.spent(process, used, s.o.Rows)
	return sample, s.accountPosts(ctx, p, schema, box)
}

// awaitPosted waits for the last answer.
func (s *stage) awaitPosted(ctx context.Context, p *process, box *postbox) (time.Duration, error) {
	limit := time.NewTimer(postLimit)
	defer limit.Stop()
	select {
	case <-box.full:
		return box.took(), nil
	case <-p.ended:
		select {
		case <-box.full: // both at once
			return box.took(), p.err
		default:
			return 0, endedEarly(p)
		}
	case <-limit.C:
		return 0, errors.New("not everything was posted within " + postLimit.String())
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// endPosting lets the program write down what it has posted, and come to its end.
func (s *stage) endPosting(ctx context.Context, p posting, schema string, run *process) error {
	if !p.stays {
		_, err := run.wait(ctx)
		return err
	}
	err := s.await(ctx, run, "what was posted to be recorded", func() (bool, error) {
		n, err := s.recorded(ctx, p, schema)
		return n >= s.o.Rows, err
	})
	if err != nil {
		return err
	}
	return run.stop()
}

func (s *stage) recorded(ctx context.Context, p posting, schema string) (n int, err error) {
	err = s.pool.QueryRow(ctx, p.recorded.In(schema)).Scan(&n)
	return n, err
}

// accountPosts wants every message posted once, and recorded where that is promised. Acknowledgements may be lost, see accountEffects.
func (s *stage) accountPosts(ctx context.Context, p posting, schema string, box *postbox) error {
	left, err := s.depth(ctx, s.work().Name)
	if err != nil {
		return err
	}
	if posted := box.posted(); posted != s.o.Rows || left > s.o.Prefetch {
		return fmt.Errorf("%d posts of %d messages, and %d are in the queue again", posted, s.o.Rows, left)
	}
	if p.recorded == "" {
		return nil
	}
	if n, err := s.recorded(ctx, p, schema); err != nil || n != s.o.Rows {
		return errors.Join(err, fmt.Errorf("%d of %d messages are recorded", n, s.o.Rows))
	}
	return nil
}
