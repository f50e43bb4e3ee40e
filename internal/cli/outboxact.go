package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/outbox"
)

// defaultPatience is how long a request is waited for: a relay looks once a second.
const defaultPatience = 15 * time.Second

// outboxAct is what retry and discard share.
type outboxAct struct {
	session  *session
	action   string
	reason   string
	filter   *outbox.Filter
	patience time.Duration
}

func outboxRetry(s *session) *cobra.Command {
	act := &outboxAct{session: s, action: outbox.ActionRetry}
	return act.command("Try parked rows again at once, with their attempts counted anew",
		"The rows are published again, and the later rows of their keys follow.")
}

func outboxDiscard(s *session) *cobra.Command {
	act := &outboxAct{session: s, action: outbox.ActionDiscard}
	cmd := act.command("Delete parked rows, or pending ones of a stopped route, for good; needs --reason",
		"The messages are not published any more, and the later rows of their keys follow. There is no way back.\n"+
			"Rows of a stopped route (`surefoot outbox ls`) are chosen by id, or with --state stopped; the relay\n"+
			"discards such a row only while it is not on its way. A publish whose answer was lost before may\n"+
			"have reached the broker all the same.")
	cmd.Flags().StringVar(&act.reason, "reason", "", "why, for the audit (required)")
	return cmd
}

func (a *outboxAct) command(short, long string) *cobra.Command {
	cmd := &cobra.Command{
		Use: a.action + " [ID...]", Short: short,
		Long: long + "\n\nChoose rows by the ids of their messages, or by --state, --key and --type. A running relay carries the\n" +
			"request out; this command waits for it, and exits 3 when something was left undone.",
		RunE: func(cmd *cobra.Command, ids []string) error {
			a.filter.IDs = ids
			return a.run(cmd.Context())
		},
	}
	a.filter = parkedFilter(cmd, a.action == outbox.ActionDiscard)
	cmd.Flags().DurationVar(&a.patience, "wait", defaultPatience, "how long to wait for a relay to do it; 0: do not wait")
	a.session.changeFlags(cmd)
	a.session.outputFlag(cmd)
	return cmd
}

func (a *outboxAct) run(ctx context.Context) error {
	if err := a.check(); err != nil {
		return err
	}
	who, err := a.session.operator()
	if err != nil {
		return err
	}
	db, err := a.session.database(ctx)
	if err != nil {
		return err
	}
	rows, err := a.choose(ctx, db)
	if err != nil {
		return err
	}
	if len(rows) == 0 {
		return a.nothing()
	}
	if a.session.dryRun {
		a.session.note("would %s %s; nothing was changed", a.action, counted(len(rows), "row"))
		return render(a.session, parkedRows(rows, ""))
	}
	if err := a.session.confirm(ctx, question{Verb: a.action, Count: len(rows), Thing: kindOf(rows), Target: "the outbox " + db.schema}); err != nil {
		return err
	}
	operation, err := outbox.Ask(ctx, db.pool, db.schema, outbox.Request{Action: a.action, Who: who, Reason: a.reason}, rows)
	if err != nil {
		return err
	}
	return a.await(ctx, db, operation)
}

func (a *outboxAct) check() error {
	a.reason = strings.TrimSpace(a.reason)
	f := a.filter
	err := missing("outbox "+a.action, "`surefoot outbox ls` lists rows; a reason is such as \"test data, never meant to be sent\"",
		required{"--reason", a.action != outbox.ActionDiscard || a.reason != ""},
		required{"rows (ids, --state, --key or --type)", len(f.IDs) > 0 || f.State != "" || f.Key != "" || f.Type != ""})
	if err != nil {
		return err
	}
	if !plain(a.reason, maxReason) {
		return usageErrorf("", "--reason must be at most %d bytes of plain text", maxReason)
	}
	if a.patience < 0 {
		return usageErrorf("", "--wait must not be negative")
	}
	return checkFilter(f, a.action == outbox.ActionDiscard)
}

// maxReason bounds a reason, in bytes.
const maxReason = 1000

// choose looks for one more row than the limit: a part of what was asked for would pass as the whole. Pending rows are
// chosen only where they are meant: by id, or by their state.
func (a *outboxAct) choose(ctx context.Context, db *database) ([]outbox.Parked, error) {
	limit := a.filter.Limit
	wanted := *a.filter
	wanted.Limit++
	if len(wanted.IDs) == 0 {
		wanted.IDs = nil
	}
	var rows []outbox.Parked
	if wanted.State != outbox.StateStopped {
		parked, err := outbox.ListParked(ctx, db.pool, db.schema, wanted)
		if err != nil {
			return nil, err
		}
		rows = parked
	}
	if wanted.State == outbox.StateStopped || wanted.State == "" && wanted.IDs != nil && a.action == outbox.ActionDiscard {
		stopped, err := outbox.ListStoppedRows(ctx, db.pool, db.schema, wanted)
		if err != nil {
			return nil, err
		}
		rows = append(rows, stopped...)
	}
	if len(rows) > limit {
		return nil, usageErrorf("narrow the choice, or raise --limit", "more than %d rows match", limit)
	}
	return rows, nil
}

// kindOf says in the question what the rows are.
func kindOf(rows []outbox.Parked) string {
	if slices.ContainsFunc(rows, func(p outbox.Parked) bool { return p.State == outbox.StateStopped }) {
		return "row"
	}
	return "parked row"
}

func (a *outboxAct) nothing() error {
	switch {
	case len(a.filter.IDs) > 0 && a.action == outbox.ActionDiscard:
		return errors.New("none of these messages is parked or waits for a stopped route; `surefoot outbox show ID` says what one waits for")
	case len(a.filter.IDs) > 0:
		return errors.New("none of these messages is parked; `surefoot outbox show ID` says what one waits for")
	}
	a.session.note("no rows match; nothing to do")
	return render(a.session, outcomes(nil))
}

func (a *outboxAct) await(ctx context.Context, db *database, operation uuid.UUID) error {
	summary, err := outbox.Summarize(ctx, db.pool, db.schema)
	if err != nil {
		return err
	}
	patience := a.patience
	if summary.Relays == 0 {
		patience = 0
	}
	result, err := outbox.Await(ctx, db.pool, db.schema, operation, patience)
	if err != nil {
		return fmt.Errorf("the request %s is written and will be carried out, but its outcome is not known: %w", operation, err)
	}
	if err := render(a.session, outcomes(result)); err != nil {
		return err
	}
	return a.judge(result, summary.Relays > 0)
}

// judge turns outcomes into the command's own: everything done, or not.
func (a *outboxAct) judge(result []outbox.Outcome, relays bool) error {
	pending, refused := 0, 0
	for _, o := range result {
		switch o.State {
		case "pending":
			pending++
		case "refused":
			refused++
		}
	}
	switch {
	case pending > 0 && !relays:
		return partly(fmt.Errorf("no relay is running: what is written, %s, will be carried out once `surefoot relay run` is started", counted(pending, "request")))
	case pending > 0:
		return partly(fmt.Errorf("not carried out yet: %s; what is written will be: look again with `surefoot outbox ls`", counted(pending, "request")))
	case refused > 0:
		return partly(fmt.Errorf("refused: %d of %s", refused, counted(len(result), "request")))
	}
	return nil
}

func outcomes(result []outbox.Outcome) listing[outbox.Outcome] {
	return listing[outbox.Outcome]{
		Items: result,
		Name:  func(o outbox.Outcome) string { return o.ID },
		Columns: []column[outbox.Outcome]{
			{"ID", func(o outbox.Outcome) string { return o.ID }},
			{"ROW", func(o outbox.Outcome) string { return strconv.Itoa(int(o.Shard)) + "/" + strconv.FormatInt(o.Row, 10) }},
			{"STATE", func(o outbox.Outcome) string { return o.State }},
			{"OUTCOME", func(o outbox.Outcome) string { return o.Outcome }},
		},
	}
}
