package deadletter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/dlqindex"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

// Bounds of a run.
const (
	maxRamp    = 20
	maxWave    = 100_000 // letters of one wave: some 20 MiB
	restWave   = 25_000  // letters of one wave after the ramp
	planBatch  = 500
	minSettle  = time.Second
	maxSettle  = 7 * 24 * time.Hour
	dfltSettle = 10 * time.Minute
	// planRetention is how long a plan can be carried out; by then the queue is another.
	planRetention = 24 * time.Hour
	runRetention  = 90 * 24 * time.Hour
)

// PlanRequest says what a run should redrive.
type PlanRequest struct {
	// Common is as in [RedriveRequest], its Rate that of the run; DryRun, Confirm and Progress are not used.
	Common
	RunSettings
	// IncludeRepeaters also takes what was redriven [MaxRedrives] times or more. Default: false.
	IncludeRepeaters bool
	// AllowReprocess also takes what died before what the inbox remembers: whether it was processed is not known. Default: false.
	AllowReprocess bool
}

func (r *PlanRequest) validate() error {
	switch {
	case len(r.Ramp) > maxRamp:
		return fmt.Errorf("%w: a ramp of %d waves, more than the limit of %d", ErrBadRequest, len(r.Ramp), maxRamp)
	case r.Settle < minSettle || r.Settle > maxSettle:
		return fmt.Errorf("%w: Settle must be %s to %s", ErrBadRequest, minSettle, maxSettle)
	}
	for _, size := range r.Ramp {
		if size < 1 || size > maxWave {
			return fmt.Errorf("%w: a wave has 1 to %d messages", ErrBadRequest, maxWave)
		}
	}
	return r.Common.validate()
}

const (
	insertRunSQL pg.SQL = `
INSERT INTO @schema@.dlq_runs (id, vhost, queue, state, who, reason, filter, rate, ramp, settle, max_failures)
VALUES ($1, $2, $3, 'planned', $4, $5, $6, $7, $8, $9, $10)`

	plannedSQL pg.SQL = `UPDATE @schema@.dlq_runs SET found = $2, not_matching = $3, letter_size = $4 WHERE id = $1`

	planLettersSQL pg.SQL = `
INSERT INTO @schema@.dlq_run_letters AS l (run, seq, key, message_id, type, class, fingerprint, order_key, copies, died_at, state, reason)
SELECT $1, e.seq, e.key, e.message_id, e.type, e.class, e.fingerprint, e.order_key, 1, e.died_at, e.state, e.reason
FROM unnest($2::int[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::timestamptz[], $10::text[], $11::text[])
     AS e(seq, key, message_id, type, class, fingerprint, order_key, died_at, state, reason)
ON CONFLICT (run, key) DO UPDATE SET copies = l.copies + 1, died_at = greatest(l.died_at, EXCLUDED.died_at)`

	inboxesSQL pg.SQL = `SELECT id, retention FROM @schema@.inbox_consumers WHERE queue = $1`

	handledSQL pg.SQL = `
SELECT DISTINCT k.key FROM unnest($2::uuid[]) AS k(key) JOIN @schema@.inbox i ON i.message = k.key AND i.consumer = ANY($1)`

	inRunSQL pg.SQL = `
SELECT DISTINCT l.key FROM @schema@.dlq_run_letters l JOIN @schema@.dlq_runs r ON r.id = l.run
WHERE l.key = ANY($3) AND l.state <> 'ineligible' AND r.vhost = $1 AND r.queue = $2 AND r.state IN ('running', 'paused', 'stopped')`

	dropRunSQL pg.SQL = `
WITH gone AS (DELETE FROM @schema@.dlq_runs WHERE vhost = $1 AND id = $2 AND state = 'planned' RETURNING id)
DELETE FROM @schema@.dlq_run_letters WHERE run IN (SELECT id FROM gone)`
)

// Plan chooses and counts what a run would redrive, writes it down and moves nothing. The run's id is the plan's. Each
// message is safe, already processed (by the inbox; it is left out), or died before what the inbox remembers.
func (d *DeadLetters) Plan(ctx context.Context, r PlanRequest) (Run, error) {
	if r.Settle == 0 {
		r.Settle = dfltSettle
	}
	r.Reason = strings.TrimSpace(r.Reason)
	n, err := namesOf(r.Queue)
	if err = errors.Join(err, r.validate()); err != nil {
		return Run{}, err
	}
	p := &planner{d: d, request: r, names: n, id: uuid.Must(uuid.NewV7())}
	p.chooser = newChooser(r.Filter, n, r.IncludeRepeaters, "")
	if err := p.begin(ctx); err != nil {
		return Run{}, err
	}
	c := claim{who: r.Who, action: "dlq redrive (plan)", wait: r.Wait, waiting: r.Waiting}
	if err := d.connected(ctx, n, c, func(ctx context.Context, conn *rabbit.Conn, _ *lock) error { return p.run(ctx, conn) }); err != nil {
		return Run{}, errors.Join(err, d.DropPlan(ctx, p.id))
	}
	return d.readRun(ctx, p.id)
}

// DropPlan forgets a plan that is not wanted. A run that has started is not touched.
func (d *DeadLetters) DropPlan(ctx context.Context, id uuid.UUID) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	if _, err := d.opts.Pool.Exec(ctx, dropRunSQL.In(d.opts.Schema), d.vhost(), id); err != nil {
		return fmt.Errorf("drop plan: %w", err)
	}
	return nil
}

// planner makes one plan. For one goroutine.
type planner struct {
	d       *DeadLetters
	request PlanRequest
	names   names
	id      uuid.UUID
	chooser chooser

	consumers []int32       // whose inbox may know
	memory    time.Duration // the shortest retention of these
	seen      int
	bytes     int // of what was seen
	unmatched int
	chosen    int
	order     int32 // of the last letter written down
	batch     []plannedLetter
	err       error
}

type plannedLetter struct {
	entry    dlqindex.Entry
	orderKey uuid.NullUUID
	outcome  outcome
}

// memories finds out whose inbox knows the queue's messages, and for how long.
func (p *planner) memories(ctx context.Context) error {
	rows, _ := p.d.opts.Pool.Query(ctx, inboxesSQL.In(p.d.opts.Schema), p.names.work)
	var id int32
	var retention time.Duration
	_, err := pgx.ForEachRow(rows, []any{&id, &retention}, func() error {
		p.consumers = append(p.consumers, id)
		if p.memory == 0 || retention < p.memory {
			p.memory = retention
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for the queue's inbox: %w", err)
	}
	return nil
}

func (p *planner) begin(ctx context.Context) error {
	if err := p.memories(ctx); err != nil {
		return err
	}
	if len(p.request.Ramp) > 0 && len(p.consumers) == 0 {
		return fmt.Errorf("%w: a ramp needs an inbox that says what was processed, and no consumer of %s has ever had one here", ErrBadRequest, p.names.work)
	}
	filter, err := json.Marshal(p.request.Filter.detail())
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	ramp := make([]int32, len(p.request.Ramp))
	for i, size := range p.request.Ramp {
		ramp[i] = int32(size)
	}
	var failures *int
	if p.request.MaxFailures >= 0 {
		failures = &p.request.MaxFailures
	}
	r := p.request
	_, err = p.d.opts.Pool.Exec(ctx, insertRunSQL.In(p.d.opts.Schema), p.id, p.d.vhost(), p.names.work, r.Who, r.Reason, filter, r.Rate, ramp, r.Settle, failures)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	return nil
}

func (p *planner) run(ctx context.Context, conn *rabbit.Conn) error {
	if _, err := inspect(ctx, conn, p.names.work); err != nil {
		return missing(err, p.names.work, ErrNoQueue)
	}
	found, err := inspect(ctx, conn, p.names.dlq)
	if err != nil {
		return missing(err, p.names.dlq, ErrNoDLQ)
	}
	err = p.d.lookAll(ctx, conn, p.names, func(d *amqp.Delivery) bool { return p.see(ctx, d) })
	p.flush(ctx)
	if err = errors.Join(p.err, err); err != nil {
		return err
	}
	if _, err := p.d.opts.Pool.Exec(ctx, plannedSQL.In(p.d.opts.Schema), p.id, max(found.Messages, p.seen), p.unmatched, p.bytes/max(p.seen, 1)); err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	return nil
}

// full says that no more are wanted.
func (p *planner) full() bool { return p.request.Max > 0 && p.chosen >= p.request.Max }

func (p *planner) see(ctx context.Context, d *amqp.Delivery) (more bool) {
	p.seen++
	p.bytes += sizeOf(d)
	f := factsOf(d, p.names)
	got := p.chooser.redrive(&f, d.Body)
	if got == outcomeUnmatched {
		p.unmatched++
		return p.err == nil
	}
	l := plannedLetter{entry: entryOfFacts(d, &f), outcome: got}
	if key := message.Text(d.Headers, message.HeaderKey); key != "" {
		l.orderKey = uuid.NullUUID{UUID: dlqindex.Key(dlqindex.Letter{ID: key}), Valid: true}
	}
	p.batch = append(p.batch, l)
	if len(p.batch) >= planBatch || p.request.Max > 0 && p.chosen+len(p.batch) >= p.request.Max {
		p.flush(ctx)
	}
	return p.err == nil && !p.full()
}

// flush judges a batch by what the database knows, and writes it down.
func (p *planner) flush(ctx context.Context) {
	if p.err != nil || len(p.batch) == 0 {
		return
	}
	batch := p.batch
	p.batch = nil
	keys := make([]uuid.UUID, len(batch))
	for i, l := range batch {
		keys[i] = l.entry.Key
	}
	handled, err := p.keys(ctx, handledSQL, p.consumers, pg.UUIDs(keys))
	if err == nil {
		var inRun map[uuid.UUID]bool
		if inRun, err = p.keys(ctx, inRunSQL, p.d.vhost(), p.names.work, pg.UUIDs(keys)); err == nil {
			err = p.write(ctx, batch, handled, inRun)
		}
	}
	p.err = err
}

func (p *planner) keys(ctx context.Context, sql pg.SQL, args ...any) (map[uuid.UUID]bool, error) {
	found := map[uuid.UUID]bool{}
	var key uuid.UUID
	rows, _ := p.d.opts.Pool.Query(ctx, sql.In(p.d.opts.Schema), args...)
	if _, err := pgx.ForEachRow(rows, []any{&key}, func() error { found[key] = true; return nil }); err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	return found, nil
}

// judge says whether a letter that was chosen can be redriven.
func (p *planner) judge(l *plannedLetter, handled, inRun map[uuid.UUID]bool) outcome {
	e := &l.entry
	switch {
	case l.outcome != outcomeChosen:
		return l.outcome
	case inRun[e.Key]:
		return outcomeInRun
	case handled[e.Key] && e.MessageID != "":
		return outcomeProcessed
	case len(p.consumers) > 0 && !p.request.AllowReprocess && e.MessageID != "" && (e.DiedAt.IsZero() || time.Since(e.DiedAt) > p.memory):
		return outcomeExpired
	}
	return outcomeChosen
}

func (p *planner) write(ctx context.Context, batch []plannedLetter, handled, inRun map[uuid.UUID]bool) error {
	byKey := map[uuid.UUID]bool{}
	var rest []plannedLetter
	var (
		seqs      []int32
		keys      []uuid.UUID
		texts     [6][]string // message_id, type, class, fingerprint, state, reason
		orderKeys []uuid.NullUUID
		died      []*time.Time
	)
	for i := range batch {
		l := &batch[i]
		if byKey[l.entry.Key] { // another copy: one statement cannot change one row twice
			rest = append(rest, *l)
			continue
		}
		byKey[l.entry.Key] = true
		got, state := p.judge(l, handled, inRun), "ineligible"
		if got == outcomeChosen {
			if p.full() {
				continue
			}
			p.chosen++
			got, state = "", "pending"
		}
		e := l.entry
		for i, text := range []string{e.MessageID, e.Type, e.Class, e.Fingerprint, state, string(got)} {
			texts[i] = append(texts[i], text)
		}
		p.order++
		seqs, keys, orderKeys = append(seqs, p.order), append(keys, e.Key), append(orderKeys, l.orderKey)
		if e.DiedAt.IsZero() {
			died = append(died, nil)
		} else {
			at := e.DiedAt.Truncate(time.Microsecond)
			died = append(died, &at)
		}
	}
	_, err := p.d.opts.Pool.Exec(ctx, planLettersSQL.In(p.d.opts.Schema), p.id, seqs, pg.UUIDs(keys), texts[0], texts[1], texts[2], texts[3], pg.NullUUIDs(orderKeys), died, texts[4], texts[5])
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	if len(rest) > 0 {
		return p.write(ctx, rest, handled, inRun)
	}
	return nil
}
