package deadletter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// verb is what an operation does.
type verb string

const (
	verbRedrive verb = "redrive"
	verbDiscard verb = "discard"
)

// past is the verb as the index and a sentence say it.
func (v verb) past() string {
	if v == verbDiscard {
		return "discarded"
	}
	return "redriven"
}

// Common is what redrives and discards have in common.
type Common struct {
	// Queue is the work queue, or its dead-letter queue. Required.
	Queue string
	// Filter chooses letters. Default: all.
	Filter Filter
	// Max is the most letters, oldest first. Default: all.
	Max int
	// Rate is the most letters a second. Default: no limit.
	Rate float64
	// DryRun only counts. Default: false.
	DryRun bool
	// Who acts, for the audit. Required.
	Who string
	// Reason, for the audit: one line of at most 1000 bytes. Required for a discard.
	Reason string
	// Wait is how long to wait while another operation has the queue. Default: not at all.
	Wait time.Duration
	// Waiting is told once who is waited for. Default: nobody is told.
	Waiting func(Holder)
	// Confirm is asked, with what a dry run found, before anything is changed; an error ends the operation. What it
	// was asked about is exactly what is then done. Default: nobody is asked, and nothing counted before.
	Confirm func(ctx context.Context, plan Result) error
	// Progress is told about four times a second. Default: nobody is told.
	Progress func(Progress)
}

// RedriveRequest says what to redrive.
type RedriveRequest struct {
	Common
	// IncludeRepeaters also moves what was redriven [MaxRedrives] times or more. Default: false.
	IncludeRepeaters bool
}

// DiscardRequest says what to discard.
type DiscardRequest struct{ Common }

// Redrive moves the chosen letters back into their work queue; see the package comment for what is guaranteed. With an
// error the result still says what was done. It returns nil also when single letters could not be moved: see
// [Left.Failed].
func (d *DeadLetters) Redrive(ctx context.Context, r RedriveRequest) (Result, error) {
	return d.operate(ctx, verbRedrive, r.Common, r.IncludeRepeaters)
}

// Discard drops the chosen letters. Each is in the audit, and whole in the archive, before it is gone; see [DeadLetters.Restore].
func (d *DeadLetters) Discard(ctx context.Context, r DiscardRequest) (Result, error) {
	if strings.TrimSpace(r.Reason) == "" {
		return Result{}, fmt.Errorf("%w: a discard needs a reason, for the audit", ErrBadRequest)
	}
	return d.operate(ctx, verbDiscard, r.Common, true)
}

// maxReason bounds a reason, in bytes.
const maxReason = 1000

func (c *Common) validate() error {
	switch {
	case c.Who == "":
		return fmt.Errorf("%w: Who is empty; the audit needs to know who acts", ErrBadRequest)
	case len(c.Reason) > maxReason || !audit.IsPlain(c.Reason):
		return fmt.Errorf("%w: the reason must be at most %d bytes of plain text", ErrBadRequest, maxReason)
	case c.Max < 0:
		return fmt.Errorf("%w: Max is negative", ErrBadRequest)
	case c.Rate != 0 && !(c.Rate >= 0.001 && c.Rate <= 1e6): // also what is no number
		return fmt.Errorf("%w: Rate must be 0.001 to 1000000 messages a second", ErrBadRequest)
	case c.Wait < 0:
		return fmt.Errorf("%w: Wait is negative", ErrBadRequest)
	}
	return c.Filter.validate()
}

// operation is one redrive or discard, under the lock of its queue.
type operation struct {
	d       *DeadLetters
	verb    verb
	request Common
	names   names
	chooser chooser
	audit   audit.Operation
	conn    *rabbit.Conn

	result    Result
	done      tally
	remaining int // letters of the start that are still in the dead-letter queue
	sessions  int
	mean      int  // size of a letter in bytes; 0: not known
	careful   bool // one letter at a time, for one of them cannot be received

	// held are the messages of live runs; nil for a run itself.
	held *holdings
	// also is done in the transaction of each record; nil: nothing.
	also func(context.Context, pgx.Tx, []settlement) error
	// more is asked when as many as wanted are gone, for it may want others of those that follow; nil: nobody does.
	more func(context.Context) (more bool, err error)
	// unsure is told that letters which were let go may be back; nil: nobody is.
	unsure func(context.Context) error
}

func (d *DeadLetters) operate(ctx context.Context, v verb, c Common, includeRepeaters bool) (Result, error) {
	n, err := namesOf(c.Queue)
	c.Reason = strings.TrimSpace(c.Reason)
	if err = errors.Join(err, c.validate()); err != nil {
		return Result{}, err
	}
	o := &operation{d: d, verb: v, request: c, names: n, done: tally{}}
	o.audit = d.operation(c.Who, "dlq "+string(v), n.dlq, c.Reason)
	o.chooser = newChooser(c.Filter, n, includeRepeaters, o.audit.ID.String())
	o.result = Result{
		Run: o.audit.ID, Queue: n.work, DLQ: n.dlq, DryRun: c.DryRun, Groups: []Group{}, Problems: []Problem{},
	}
	err = d.connected(ctx, n, c.claim(v), func(ctx context.Context, conn *rabbit.Conn, _ *lock) (err error) {
		o.conn = conn
		defer func() {
			if o.conn != conn { // see beCareful
				err = errors.Join(err, o.conn.Close())
			}
		}()
		if err := o.run(ctx); err != nil || c.Max > 0 || o.result.Left.NotReached == 0 {
			return err
		}
		return fmt.Errorf("%w: %d of %d that were in %s", ErrTakenByOthers, o.result.Left.NotReached, o.result.Found, n.dlq)
	})
	return o.result, err
}

// operation is one for the audit.
func (d *DeadLetters) operation(who, action, target, reason string) audit.Operation {
	op := audit.NewOperation(who, action, target, reason)
	op.Origin = d.opts.origin()
	return op
}

func (c *Common) claim(v verb) claim {
	return claim{who: c.Who, action: "dlq " + string(v), wait: c.Wait, waiting: c.Waiting}
}

// locked does work under the queue's lock.
func (d *DeadLetters) locked(ctx context.Context, n names, c claim, work func(context.Context, *lock) error) error {
	c.lock, c.queue = d.lockName(n.dlq), n.dlq
	held, lock, err := d.locks.acquire(ctx, c)
	if err != nil {
		return err
	}
	defer lock.giveBack(ctx)
	err = work(held, lock)
	if cause := context.Cause(held); err != nil && errors.Is(cause, ErrLockLost) && !errors.Is(err, ErrLockLost) {
		err = errors.Join(cause, err)
	}
	return err
}

// connected is locked with a connection for receiving, once looking is known to be safe.
func (d *DeadLetters) connected(ctx context.Context, n names, c claim, work func(context.Context, *rabbit.Conn, *lock) error) error {
	return d.locked(ctx, n, c, func(ctx context.Context, held *lock) error {
		conn, err := d.connect(ctx, "dlq")
		if err != nil {
			return err
		}
		if err = d.safe(ctx, conn, n); err == nil {
			err = unreadable(work(ctx, conn, held), n.dlq)
		}
		return errors.Join(err, conn.Close())
	})
}

// lockName tells queues of one name in different vhosts apart.
func (d *DeadLetters) lockName(dlq string) string { return d.vhost() + " " + dlq }

// vhost is that of the broker's URL.
func (d *DeadLetters) vhost() string { return d.home }

func (o *operation) run(ctx context.Context) error {
	found, err := inspect(ctx, o.conn, o.names.dlq)
	if err != nil {
		return missing(err, o.names.dlq, ErrNoDLQ)
	}
	if o.verb == verbRedrive {
		if _, err := inspect(ctx, o.conn, o.names.work); err != nil {
			return missing(err, o.names.work, ErrNoQueue)
		}
	}
	o.remaining, o.result.Found = found.Messages, found.Messages
	if found.Messages == 0 {
		return nil
	}
	if o.held, err = o.d.holdings(ctx, o.d.opts.Pool, o.names.work, uuid.Nil, nil); err != nil {
		return err
	}
	if o.verb == verbDiscard {
		o.also = o.stillFree
	}
	if o.request.DryRun {
		o.result, err = o.plan(ctx)
		return err
	}
	if o.request.Confirm != nil {
		plan, err := o.plan(ctx)
		if err != nil {
			return err
		}
		if err := o.request.Confirm(ctx, plan); err != nil || plan.Done == 0 {
			o.result.Left, o.result.HeldBy, o.result.Problems = plan.Left, plan.HeldBy, plan.Problems
			return err
		}
	}
	return o.change(ctx)
}

// plan counts what would be done, and changes nothing.
func (o *operation) plan(ctx context.Context) (Result, error) {
	r, done := o.result, tally{}
	o.held.reset()
	w, err := o.d.openWalker(ctx, o.conn, o.names.dlq, 0, o.remaining)
	if err != nil {
		return r, missing(err, o.names.dlq, ErrNoDLQ)
	}
	err = w.each(ctx, o.remaining, func(d *amqp.Delivery) bool {
		f := factsOf(d, o.names)
		if got, detail := o.choose(&f, d.Body); got != outcomeChosen {
			r.Left.count(got)
			r.note(&f, got, detail)
			return true
		}
		r.Done++
		done.add(&f)
		return o.request.Max == 0 || r.Done < o.request.Max
	})
	o.mean = w.mean()
	r.Groups, r.HeldBy = done.groups(), o.held.counted()
	r.Left.NotReached = max(r.Found-r.Done-r.Left.sum(), 0)
	return r, errors.Join(err, w.close(ctx))
}

// walk starts to receive what is to be moved.
func (o *operation) walk(ctx context.Context) (w *walker, err error) {
	prefetch := 1
	if !o.careful {
		if o.mean == 0 && o.remaining > peekSize {
			if o.mean, err = o.d.peek(ctx, o.conn, o.names.dlq); err != nil {
				return nil, err
			}
		}
		prefetch = o.d.readAhead().prefetch(o.mean)
		if most := o.request.Max; most > 0 { // in a small wave little is asked for ahead
			prefetch = min(prefetch, max(2*most, 2*peekSize))
		}
	}
	w, err = o.d.openWalker(ctx, o.conn, o.names.dlq, prefetch, o.remaining)
	if err == nil && o.careful {
		w.ahead = readAhead{1, 1}
	}
	return w, err
}

// choose says what is done with a letter, and more of why it stays.
func (o *operation) choose(f *facts, body []byte) (got outcome, detail string) {
	if o.verb == verbDiscard {
		got = o.chooser.discard(f, body)
	} else {
		got = o.chooser.redrive(f, body)
	}
	if got != outcomeChosen {
		return got, ""
	}
	run, held := o.held.holder(f.key)
	if !held {
		return got, ""
	}
	run.Count++
	return outcomeInRun, fmt.Sprintf("%s is %s", run.Run, run.State)
}

// note lists a letter that stays for a reason of its own.
func (r *Result) note(f *facts, o outcome, detail string) {
	if o == outcomeUnmatched || len(r.Problems) >= maxProblems {
		return
	}
	reason := string(o)
	if detail != "" {
		reason += ": " + detail
	}
	r.Problems = append(r.Problems, Problem{ID: f.id, Type: f.typ, Reason: reason})
}

// change does it: the audit's record of the start, sessions until nothing is left to do, the record of the end.
func (o *operation) change(ctx context.Context) error {
	if err := o.record(ctx, audit.Entry{Outcome: "started", Detail: o.startDetail()}); err != nil {
		return err
	}
	o.held.reset()
	err := o.moveAll(ctx)
	o.result.Groups, o.result.HeldBy = o.done.groups(), o.held.counted()
	o.result.Left.NotReached = max(o.remaining-o.result.Left.sum(), 0)
	o.d.heads.forget(o.names.dlq)
	return errors.Join(err, o.recordEnd(ctx, err))
}

// moveAll runs sessions until nothing is left to do.
func (o *operation) moveAll(ctx context.Context) error {
	err := fault.Point(string(o.verb) + ".after-start")
	for again := err == nil; again; {
		before := *o
		before.done = maps.Clone(o.done)
		again, err = o.session(ctx)
		if errors.Is(err, rabbit.ErrUndecodable) && !o.careful && ctx.Err() == nil {
			again, err = o.beCareful(ctx, &before, err)
		}
	}
	return err
}

// beCareful goes on after a letter that cannot be received has ended a session, with it the acknowledgements of letters
// before it that were moved already. One letter at a time: each is let go before the next one comes, so that they are moved
// once more and not at every run. before is how the operation was when that session began.
func (o *operation) beCareful(ctx context.Context, before *operation, cause error) (again bool, err error) {
	conn, err := o.d.connect(ctx, "dlq")
	if err != nil {
		return false, errors.Join(cause, err)
	}
	o.conn, o.careful = conn, true
	there, err := o.returned(ctx, before.remaining)
	if err != nil {
		return false, err
	}
	if there > o.remaining { // acknowledgements were lost
		o.remaining, o.done, o.result.Done = before.remaining, before.done, before.result.Done
		if o.unsure != nil {
			err = o.unsure(ctx)
		}
	}
	return err == nil, err
}

// returned counts the letters once the broker has given back what an ended connection held: all of them, or fewer if some
// acknowledgements arrived.
func (o *operation) returned(ctx context.Context, most int) (there int, err error) {
	deadline := time.Now().Add(returnSoon)
	for {
		found, err := inspect(ctx, o.conn, o.names.dlq)
		if err != nil || found.Messages >= most || time.Now().After(deadline) || !pause.For(ctx, returnPoll) {
			return min(found.Messages, most), err
		}
	}
}

func (o *operation) startDetail() map[string]any {
	detail := map[string]any{"found": o.result.Found, "filter": o.chooser.detail()}
	if o.request.Max > 0 {
		detail["max"] = o.request.Max
	}
	if o.request.Rate > 0 {
		detail["rate"] = o.request.Rate
	}
	if o.verb == verbRedrive {
		detail["include_repeaters"] = o.chooser.includeRepeaters
	}
	return detail
}

func (o *operation) recordEnd(ctx context.Context, cause error) error {
	entry := audit.Entry{Outcome: "finished", Detail: map[string]any{"done": o.result.Done, "left": o.result.Left}}
	if cause != nil {
		entry.Outcome = "stopped"
		entry.Detail["error"] = cause.Error()
	}
	return o.record(ctx, entry)
}

// record writes to the audit also when ctx has ended: what happened has to be told.
func (o *operation) record(ctx context.Context, entries ...audit.Entry) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordLimit)
	defer cancel()
	return audit.Write(ctx, o.d.opts.Pool, o.d.opts.Schema, o.audit, entries...)
}

// recordLimit bounds one write to the audit.
const recordLimit = 10 * time.Second
