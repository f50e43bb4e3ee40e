package watchdog

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/usertable"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Bounds of an act.
const (
	// MaxKeys is the most rows of one act.
	MaxKeys = 10_000
	// MaxExtension is the longest time of one [Watchdog.Extend].
	MaxExtension = 366 * 24 * time.Hour
	maxReason    = 1000
	// anyClock, as a limit, is met by every clock: it lies a century ahead.
	anyClock = -100 * 366 * 24 * time.Hour
)

// ErrBadRequest says that an act was asked for in a way that cannot be carried out; nothing was done.
var ErrBadRequest = errors.New("watchdog: bad request")

// Act is what an operator does to single sagas of one rule.
type Act struct {
	// Rule by its name, and Keys of the rows as text. Required; at most [MaxKeys].
	Rule string
	Keys []string
	// Who acts and why, for the audit. Required; the reason is one line of at most 1000 bytes.
	Who, Reason string
	// Origin is from where, for the audit: the program and its host. Default: not said.
	Origin string
	// DryRun only looks. Default: false.
	DryRun bool
}

// Acted is what became of one row.
type Acted struct {
	Rule string `json:"rule"`
	Key  string `json:"key"`
	// Done says that it was done, or with DryRun that it would be.
	Done bool `json:"done"`
	// Outcome says what was done, or why nothing was. It may quote the user's data: escape it before it is shown.
	Outcome string `json:"outcome"`
	// Until a row is held, of an extension.
	Until *time.Time `json:"until,omitempty"`
	// EventID is that of the event which says that the row was changed: now, or whenever the watchdog does it. The audit has the act under it.
	EventID string `json:"event_id,omitempty"`
	// Operation ties the audit's entries of one act together; zero with DryRun.
	Operation uuid.UUID `json:"operation,omitzero"`
}

// Extend gives rows more time: by that much from their limit, from the end of an earlier extension, or from now, whatever is latest. Their
// table is not touched, and a row that leaves its status, or gets a new clock, is a case of its own. At most [MaxExtension].
//
// Each row is dealt with in a transaction of its own, with its entry in the audit. An error means that the acts after the last one returned
// were not done, and that of the one at fault it may not be known; to do the same again does no harm to any but Extend, which would add its
// time again.
func (w *Watchdog) Extend(ctx context.Context, a Act, by time.Duration) ([]Acted, error) {
	if by < time.Second || by > MaxExtension {
		return nil, fmt.Errorf("%w: rows are extended by %s to %s", ErrBadRequest, time.Second, MaxExtension)
	}
	return w.act(ctx, "watchdog extend", a, &actor{by: by, do: (*actor).extend})
}

// Skip keeps the watchdog from rows for as long as they stay as they are, at most for [HoldRetention]. See [Watchdog.Extend] for the rest.
func (w *Watchdog) Skip(ctx context.Context, a Act) ([]Acted, error) {
	return w.act(ctx, "watchdog skip", a, &actor{do: (*actor).skip})
}

// Lift takes a hold away: the watchdog deals with the row again. See [Watchdog.Extend] for the rest.
func (w *Watchdog) Lift(ctx context.Context, a Act) ([]Acted, error) {
	return w.act(ctx, "watchdog skip --lift", a, &actor{do: (*actor).lift})
}

// Cancel does now what the watchdog does to an overdue row: the same change, with the same event. A hold does not keep an operator from it.
// With early also rows that are within their limit are changed. See [Watchdog.Extend] for the rest.
func (w *Watchdog) Cancel(ctx context.Context, a Act, early bool) ([]Acted, error) {
	return w.act(ctx, "watchdog cancel", a, &actor{early: early, do: (*actor).cancel})
}

func (a *Act) validate() error {
	switch {
	case len(a.Keys) == 0 || len(a.Keys) > MaxKeys:
		return fmt.Errorf("%w: it needs the keys of 1 to %d rows", ErrBadRequest, MaxKeys)
	case a.Who == "":
		return fmt.Errorf("%w: the audit needs to know who acts", ErrBadRequest)
	case a.Reason == "" || len(a.Reason) > maxReason || !audit.IsPlain(a.Reason):
		return fmt.Errorf("%w: it needs a reason, of at most %d bytes of plain text", ErrBadRequest, maxReason)
	}
	return nil
}

// actor carries out one act, row by row. For one goroutine.
type actor struct {
	w     *Watchdog
	r     *compiled
	act   Act
	op    audit.Operation
	by    time.Duration
	early bool
	// do deals with one row that is locked. It returns what was done; a refusedError says why nothing was.
	do func(*actor, context.Context, pgx.Tx, examined) (string, error)
}

// refusedError is why nothing is done to a row.
type refusedError string

// Error is the reason.
func (e refusedError) Error() string { return string(e) }

// examined is a row that an operator wants something of.
type examined struct {
	claimed
	Overdue  bool
	Stuck    bool
	HasClock bool
	Until    *time.Time // when an extension ends
	Held     bool
	Tries    int
	Failure  string
}

func (w *Watchdog) act(ctx context.Context, action string, a Act, do *actor) ([]Acted, error) {
	a.Reason = strings.TrimSpace(a.Reason)
	if err := a.validate(); err != nil {
		return nil, err
	}
	rules, err := w.rules(a.Rule)
	if err == nil && a.Rule == "" {
		err = fmt.Errorf("%w: the rule is not named", ErrBadRequest)
	}
	if err == nil {
		err = pg.CheckVersion(ctx, w.options.Pool, w.options.Schema)
	}
	if err != nil {
		return nil, err
	}
	do.w, do.act, do.op = w, a, audit.NewOperation(a.Who, action, a.Rule, a.Reason)
	do.op.Origin = a.Origin
	if do.r, err = w.compile(ctx, rules[0]); err != nil {
		return nil, err
	}
	if do.early {
		do.r.changeLimit = anyClock
	}
	return do.all(ctx)
}

func (a *actor) all(ctx context.Context) ([]Acted, error) {
	all := []Acted{}
	for _, key := range a.act.Keys {
		one, err := a.one(ctx, key)
		if err != nil {
			return all, fmt.Errorf("%s of %q: %w", a.op.Action, clipKey(key), err)
		}
		all = append(all, one)
	}
	if a.act.DryRun {
		return all, nil
	}
	done := 0
	for _, one := range all {
		if one.Done {
			done++
		}
	}
	entry := audit.Entry{Outcome: "finished", Detail: map[string]any{"done": done, "asked": len(all)}}
	return all, audit.Write(ctx, a.w.options.Pool, a.w.options.Schema, a.op, entry)
}

// one deals with one key in a transaction. An error is one of the database or the network; what is wrong with the row is in the result.
func (a *actor) one(ctx context.Context, key string) (Acted, error) {
	one := Acted{Rule: a.r.Name, Key: key}
	if !a.act.DryRun {
		one.Operation = a.op.ID
	}
	var cancelled *claimed
	err := pgx.BeginTxFunc(ctx, a.w.options.Pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		row, err := a.examine(ctx, tx, key)
		if err != nil {
			return err
		}
		one.Outcome, err = a.do(a, ctx, tx, row)
		if err != nil {
			return err
		}
		one.Done, one.EventID = true, eventID(a.r.Name, row.claimed)
		if a.by > 0 {
			one.Until = row.Until
		}
		if a.act.DryRun {
			return nil
		}
		if a.op.Action == "watchdog cancel" {
			cancelled = &row.claimed
		}
		return a.record(ctx, tx, row, one)
	})
	if why, refused := a.refusal(ctx, err); refused {
		return Acted{Rule: a.r.Name, Key: key, Outcome: why, Operation: one.Operation}, a.recordRefusal(ctx, key, why)
	}
	if err != nil {
		return one, err
	}
	if cancelled != nil {
		a.w.report(a.r, outcome{cancelled: []claimed{*cancelled}})
	}
	return one, nil
}

// refusal is why a row was left as it is: it does not fit, or the database refused the change. Not so when the database itself is the reason.
func (a *actor) refusal(ctx context.Context, err error) (string, bool) {
	if refused, ok := errors.AsType[refusedError](err); ok {
		return string(refused), true
	}
	state := resilience.SQLStateOf(err)
	switch {
	case err == nil || ctx.Err() != nil:
		return "", false
	case errors.Is(err, errUndone):
		return usertable.Bounded(err), true
	case state == pg.LockNotAvailable:
		return "another transaction has locked the row; try again", true
	case strings.HasPrefix(state, "22"):
		return "it cannot be a key of " + a.r.Table + ": " + usertable.Bounded(err), true
	case state != "" && !usertable.Passing(err):
		return "the change was refused: " + usertable.Bounded(err), true
	}
	return "", false
}

// examine locks the row of a key, unless it only looks.
func (a *actor) examine(ctx context.Context, tx pgx.Tx, key string) (examined, error) {
	sql := a.r.examine
	if !a.act.DryRun {
		sql += " FOR UPDATE OF t"
		if err := usertable.LimitLocks(ctx, tx, a.w.options.LockTimeout); err != nil {
			return examined{}, err
		}
	}
	rows, _ := tx.Query(ctx, sql, a.r.Stuck, a.r.Limit, key, a.r.Name, a.by) // its error is that of the rows
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[examined])
	switch {
	case err != nil:
		return examined{}, err
	case len(found) == 0:
		return examined{}, refusedError("there is no such row in " + a.r.Table)
	case !found[0].Stuck:
		return examined{}, refusedError(fmt.Sprintf("its status is %q, which the rule does not watch", clipKey(found[0].Status)))
	case !found[0].HasClock:
		return examined{}, refusedError("its clock is not set: the watchdog leaves it alone")
	case len(found) > 1 && found[1].Stuck && a.op.Action != "watchdog cancel":
		return examined{}, refusedError("several rows share this key: they cannot be held one by one")
	}
	return found[0], nil
}

func (a *actor) extend(ctx context.Context, tx pgx.Tx, row examined) (string, error) {
	return "extended until " + row.Until.UTC().Format(time.RFC3339), a.hold(ctx, tx, row, row.Until)
}

func (a *actor) skip(ctx context.Context, tx pgx.Tx, row examined) (string, error) {
	return "skipped", a.hold(ctx, tx, row, nil)
}

// hold also forgets the failures so far: they are in the audit.
func (a *actor) hold(ctx context.Context, tx pgx.Tx, row examined, until *time.Time) error {
	if a.act.DryRun {
		return nil
	}
	if err := a.w.hold(ctx, tx, a.r, row.claimed, until, a.op.Who, a.op.Reason); err != nil {
		return err
	}
	return a.w.forgive(ctx, tx, a.r, row.claimed)
}

func (a *actor) lift(ctx context.Context, tx pgx.Tx, row examined) (string, error) {
	if !row.Held {
		return "", refusedError("nothing holds it")
	}
	if a.act.DryRun {
		return "lifted", nil
	}
	return "lifted", a.w.release(ctx, tx, a.r, row.claimed)
}

func (a *actor) cancel(ctx context.Context, tx pgx.Tx, row examined) (string, error) {
	if !row.Overdue && !a.early {
		left := "within its limit until " + row.Since.Add(a.r.Limit).UTC().Format(time.RFC3339)
		return "", refusedError(left + ": cancel it early, or wait")
	}
	if a.act.DryRun {
		return "changed to " + a.r.NewStatus, nil
	}
	if err := a.w.release(ctx, tx, a.r, row.claimed); err != nil {
		return "", err
	}
	done, err := a.w.cancel(ctx, tx, a.r, row.claimed)
	if err == nil && !done {
		err = refusedError("somebody else has changed it")
	}
	if err != nil {
		return "", err
	}
	return "changed to " + a.r.NewStatus, a.w.forgive(ctx, tx, a.r, row.claimed)
}

// record writes the audit's entry for a row in its transaction, under the id of the event of its stay.
func (a *actor) record(ctx context.Context, tx pgx.Tx, row examined, one Acted) error {
	detail := map[string]any{"key": clipKey(row.Key), "status": clipKey(row.Status), "since": message.Stamp{Time: row.Since}}
	if row.Tries > 0 {
		detail["tries"], detail["error"] = row.Tries, row.Failure
	}
	return audit.Write(ctx, tx, a.w.options.Schema, a.op, audit.Entry{MessageID: one.EventID, Outcome: one.Outcome, Detail: detail})
}

func (a *actor) recordRefusal(ctx context.Context, key, why string) error {
	if a.act.DryRun {
		return nil
	}
	entry := audit.Entry{Outcome: "refused: " + why, Detail: map[string]any{"key": clipKey(key)}}
	return audit.Write(ctx, a.w.options.Pool, a.w.options.Schema, a.op, entry)
}
