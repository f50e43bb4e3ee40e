package deadletter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

// ListRequest says which dead-letter queues to list.
type ListRequest struct {
	// All lists every queue of the vhost that ends in ".dlq", by the management API, instead of only those of the
	// configured topology. Default: false.
	All bool
	// Who looks, for the lock. Required.
	Who string
}

// Depth is one dead-letter queue.
type Depth struct {
	Queue   string `json:"queue"`
	DLQ     string `json:"dlq"`
	Owner   string `json:"owner"`
	Runbook string `json:"runbook"`
	// Letters is how many are there, those included that an operation under way holds.
	Letters int `json:"letters"`
	// Held is how many of these an operation under way holds, by the management API, whose figure lags by some seconds;
	// 0 when nobody works on the queue.
	Held int `json:"held"`
	// OldestAt is when the letter at the head died; zero when it is not known.
	OldestAt message.Stamp `json:"oldest_at,omitzero"`
	// OldestSeconds is the age of the head, 0 when it is not known.
	OldestSeconds float64 `json:"oldest_seconds"`
	// Note says who works on the queue, and why a figure is missing.
	Note string `json:"note,omitempty"`
}

// List returns the dead-letter queues by name. The ages come from one look at each head, which is kept for
// Options.HeadAge. A queue that another operation has is listed without its age and with who that is: what it holds
// is not ready, so that the queue may look empty to a client that does not ask the lock. A queue that cannot be looked at
// says so in its note, and the list goes on; then the error, an [*UnseenError], comes with the whole list.
func (d *DeadLetters) List(ctx context.Context, r ListRequest) (depths []Depth, err error) {
	conn, err := d.connect(ctx, "dlq")
	if err != nil {
		return nil, err
	}
	defer func() {
		if conn != nil {
			err = errors.Join(err, conn.Close())
		}
	}()
	queues, err := d.listed(ctx, r.All)
	if err != nil {
		return nil, err
	}
	depths = make([]Depth, 0, len(queues))
	var unseen []string
	for _, q := range queues {
		if conn.Err() != nil { // the last queue has cost it
			if conn, err = d.connect(ctx, "dlq"); err != nil {
				return nil, err
			}
		}
		depth, err := d.depth(ctx, conn, q, r.Who)
		if err = unreadable(err, depth.DLQ); err != nil {
			if !ofQueue(err) {
				return nil, err
			}
			depth.Note = err.Error()
			unseen = append(unseen, depth.DLQ)
		}
		depths = append(depths, depth)
	}
	if len(unseen) > 0 {
		return depths, &UnseenError{unseen}
	}
	return depths, nil
}

// ofQueue says whether an error concerns one queue: a letter that cannot be received, or a refusal by the broker. A service
// that is away concerns all.
func ofQueue(err error) bool {
	refusal, refused := errors.AsType[*amqp.Error](err)
	return errors.Is(err, ErrUndecodable) || errors.Is(err, ErrNothingComes) || refused && refusal.Server && refusal.Recover
}

// UnseenError names the queues of a list that could not be looked at.
type UnseenError struct{ Queues []string }

// Error names them.
func (e *UnseenError) Error() string {
	return "not looked at, see their notes: " + message.Clip(strings.Join(e.Queues, ", "), 1000)
}

// listed are the configured queues, and with all those of the vhost beside them, by name.
func (d *DeadLetters) listed(ctx context.Context, all bool) ([]Queue, error) {
	queues := slices.Clone(d.opts.Queues)
	if all {
		if d.management == nil {
			return nil, fmt.Errorf("%w: listing all queues needs the management URL", ErrBadRequest)
		}
		found, err := d.management.Queues(ctx)
		if err != nil {
			return nil, err
		}
		for _, q := range found {
			work, isDLQ := strings.CutSuffix(q.Name, Suffix)
			if isDLQ && work != "" && !slices.ContainsFunc(queues, func(known Queue) bool { return known.Name == work }) {
				queues = append(queues, Queue{Name: work})
			}
		}
	}
	slices.SortFunc(queues, func(a, b Queue) int { return cmp.Compare(a.Name, b.Name) })
	return queues, nil
}

func (d *DeadLetters) depth(ctx context.Context, conn *rabbit.Conn, q Queue, who string) (Depth, error) {
	depth := Depth{Queue: q.Name, DLQ: DLQ(q.Name), Owner: q.Owner, Runbook: q.Runbook}
	before, err := d.worker(ctx, depth.DLQ)
	if err != nil {
		return depth, err
	}
	found, err := inspect(ctx, conn, depth.DLQ)
	if err = missing(err, depth.DLQ, ErrNoDLQ); errors.Is(err, ErrNoDLQ) {
		depth.Note = "missing; create it with `surefoot topology apply`"
		return depth, nil
	}
	if err != nil {
		return depth, err
	}
	after, err := d.worker(ctx, depth.DLQ) // it may have begun, or ended, around the count
	if err != nil {
		return depth, err
	}
	depth.Letters = found.Messages
	if worker := cmp.Or(after, before); worker != nil {
		d.held(ctx, &depth, *worker)
		return depth, nil
	}
	if found.Messages == 0 {
		d.heads.forget(depth.DLQ)
		return depth, nil
	}
	err = d.age(ctx, conn, &depth, who)
	return depth, err
}

// worker is who has the queue; nil when nobody does.
func (d *DeadLetters) worker(ctx context.Context, dlq string) (*Holder, error) {
	holder, err := d.locks.holder(ctx, d.lockName(dlq))
	switch {
	case errors.Is(err, pgx.ErrNoRows), err == nil && holder.expired:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &holder, nil
}

// held adds what the worker holds, and says who that is.
func (d *DeadLetters) held(ctx context.Context, depth *Depth, worker Holder) {
	depth.Note = "in use by " + worker.Who + " (" + worker.Action + " since " + worker.Since.UTC().Format(time.RFC3339) + ")"
	if d.management == nil {
		depth.Note += "; what it holds is not counted without the management URL"
		return
	}
	q, err := d.management.Queue(ctx, depth.DLQ)
	if err != nil {
		d.opts.Logger.Debug().Err(err).Str("dlq", depth.DLQ).Msg("held letters not counted")
		depth.Note += "; what it holds could not be counted"
		return
	}
	depth.Held = int(q.Unacknowledged)
	depth.Letters += depth.Held
	depth.Note += "; what it holds is counted up to 5 s late"
}

// age fills in the age of the head, or notes why it is not known.
func (d *DeadLetters) age(ctx context.Context, conn *rabbit.Conn, depth *Depth, who string) error {
	at, known := d.heads.get(depth.DLQ, depth.Letters, d.opts.HeadAge)
	if !known {
		var err error
		if at, err = d.head(ctx, conn, depth.DLQ, who); err != nil {
			locked, isLocked := errors.AsType[*LockedError](err)
			switch {
			case isLocked:
				d.held(ctx, depth, locked.Holder)
			case errors.Is(err, ErrUnsafe):
				depth.Note = err.Error()
			default:
				return err
			}
			return nil
		}
		d.heads.put(depth.DLQ, head{at: at, letters: depth.Letters, seen: time.Now()})
	}
	if depth.OldestAt.Time = at; !at.IsZero() {
		depth.OldestSeconds = max(time.Since(at).Seconds(), 0)
	}
	return nil
}

// head looks at the oldest letter alone and returns when it died.
func (d *DeadLetters) head(ctx context.Context, conn *rabbit.Conn, dlq, who string) (at time.Time, err error) {
	n, err := namesOf(dlq)
	if err != nil {
		return at, err
	}
	err = d.locked(ctx, n, claim{who: who, action: "dlq ls"}, func(ctx context.Context, _ *lock) error {
		if err := d.safe(ctx, conn, n); err != nil {
			return err
		}
		return d.look(ctx, conn, n, 1, false, func(delivery *amqp.Delivery) bool {
			f := factsOf(delivery, n)
			if at = f.diedAt; at.IsZero() {
				at = delivery.Timestamp
			}
			return false
		})
	})
	return at, err
}

// heads remembers what the heads of the queues were. The zero value is ready; safe for concurrent use.
type heads struct {
	mu    sync.Mutex
	known map[string]head
}

type head struct {
	at      time.Time
	letters int
	seen    time.Time
}

// get believes a look until the queue has become shorter, for then its head may be gone.
func (h *heads) get(dlq string, letters int, limit time.Duration) (time.Time, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known, ok := h.known[dlq]
	if !ok || letters < known.letters || time.Since(known.seen) > limit {
		return time.Time{}, false
	}
	return known.at, true
}

func (h *heads) put(dlq string, seen head) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil {
		h.known = map[string]head{}
	}
	h.known[dlq] = seen
}

func (h *heads) forget(dlq string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.known, dlq)
}
