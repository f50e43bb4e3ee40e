package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
	"github.com/surefoot-mq/surefoot/resilience"
)

const (
	// A batch is written when it has this many messages or bytes.
	batchMessages = 500
	batchBytes    = 4 << 20
	// maxIDs bounds the ids that are told, and so what is remembered of the input.
	maxIDs = 100_000
	// shownIDs is how many of them a table shows.
	shownIDs = 5
)

// outboxAdder reads messages line by line and writes them in one transaction.
type outboxAdder struct {
	session  *session
	file     string
	once     bool
	lockKeys bool
	anyRoute bool
	routes   *addedRoutes
}

// added is what the command did.
type added struct {
	Lines    int `json:"lines"`
	Enqueued int `json:"enqueued"`
	// Known were left out by --once.
	Known int `json:"known"`
	// IDs of the lines, in their order, also of those that --once left out; of a dry run, those that the lines give.
	IDs []string `json:"ids"`
	// MoreIDs is how many ids there are beyond those told.
	MoreIDs int `json:"more_ids"`
}

// add notes a line that is right.
func (r *added) add(id string) {
	r.Lines++
	switch {
	case id == "":
	case len(r.IDs) < maxIDs:
		r.IDs = append(r.IDs, id)
	default:
		r.MoreIDs++
	}
}

func outboxAdd(s *session) *cobra.Command {
	a := &outboxAdder{session: s}
	cmd := &cobra.Command{
		Use: "add", Short: "Enqueue messages from JSON lines, all of them or none", Args: cobra.NoArgs,
		Long: "Enqueue messages from a file or stdin, one JSON object per line:\n\n" +
			`  {"type": "order.created", "key": "42", "payload": {"orderId": "42"}, "headers": {"x-tenant": "a"}}` + "\n\n" +
			"Members: type and payload (any JSON, sent byte for byte as it stands) or payload_base64; optional are id, key,\n" +
			"exchange, routing_key, occurred_at, source, correlation_id, causation_id, request_id, content_type, headers,\n" +
			"traceparent, tracestate. Everything is one transaction, however long the input: a line that is wrong, an\n" +
			"interruption or an error, and nothing is enqueued. Memory stays bounded; the transaction stays open until the\n" +
			"input ends. It is not asked whether to go ahead: see --dry-run. Where the management API tells within two seconds that no\n" +
			"queue is bound for a message, that line is wrong, too: the relay would stop its route, and later messages of its key would wait.\n\n" +
			"Each message gets an id; the first 100000 are told, by -o name one per line. Besides the rights of a producer\n" +
			"the database role needs SELECT on schema_version and INSERT on audit.",
		RunE: func(cmd *cobra.Command, _ []string) error { return a.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&a.file, "file", "F", "-", "read this `file`; - is stdin")
	flags.BoolVar(&a.once, "once", false, "leave out ids that were enqueued with --once in the last 7 days; every line needs an id")
	flags.BoolVar(&a.lockKeys, "lock-keys", false, "lock each key to the end, so that its order holds against other writers")
	flags.BoolVar(&a.anyRoute, "allow-unroutable", false, "also messages for which no queue is bound, which wait in the outbox until one is")
	flags.BoolVar(&s.dryRun, "dry-run", false, "check every line, and enqueue nothing")
	s.outputFlag(cmd)
	return cmd
}

func (a *outboxAdder) run(ctx context.Context) error {
	input, err := a.open()
	if err != nil {
		return err
	}
	defer input.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !a.anyRoute {
		a.routes = a.session.addedRoutes(ctx)
	}
	lines := readLines(ctx, input)
	if a.session.dryRun {
		got, err := a.consume(ctx, lines, func([]message.Message) (int, error) { return 0, nil })
		if err != nil {
			return err
		}
		a.session.note("%s checked and right; nothing was enqueued", counted(got.Lines, "line"))
		return a.render(got)
	}
	err = a.write(ctx, lines)
	if resilience.SQLStateOf(err) == pg.InsufficientPrivilege {
		return denied(err, "the rights that are needed are in `surefoot outbox add --help`")
	}
	return err
}

func (a *outboxAdder) open() (io.ReadCloser, error) {
	if a.file == "-" {
		if a.session.env.StdinTTY {
			a.session.note("reading JSON lines from the terminal; end with Ctrl-D")
		}
		return io.NopCloser(a.session.env.Stdin), nil
	}
	file, err := os.Open(a.file)
	if err != nil {
		return nil, usageErrorf("", "open input: %w", err)
	}
	return file, nil
}

func (a *outboxAdder) write(ctx context.Context, lines <-chan line) error {
	who, err := a.session.operator()
	if err != nil {
		return err
	}
	db, err := a.session.database(ctx)
	if err != nil {
		return err
	}
	box, err := outbox.New(outbox.Options{Schema: db.schema, Once: a.once, LockKeys: a.lockKeys})
	if err != nil {
		return err
	}
	tx, err := db.pool.Begin(ctx)
	if err != nil {
		return fmt.Errorf("nothing was enqueued: %w", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	got, err := a.consume(ctx, lines, func(batch []message.Message) (int, error) { return box.Enqueue(ctx, tx, batch...) })
	if err == nil && got.Lines > 0 {
		err = a.audit(ctx, tx, db.schema, who, got)
	}
	if err != nil {
		return nothingEnqueued(err)
	}
	if err := commitError(tx.Commit(ctx)); err != nil {
		return err
	}
	if got.Lines == 0 {
		a.session.note("the input is empty; nothing was enqueued")
	}
	if err := a.render(got); err != nil {
		return partly(fmt.Errorf("%d messages were enqueued; do not add them again: %w", got.Enqueued, err))
	}
	return nil
}

// nothingEnqueued says what to do about an error before the commit, when that is to try again: batches lock their keys and ids in order, a
// whole input does not.
func nothingEnqueued(err error) error {
	if resilience.Classify(err) == resilience.ClassDatabaseRetry {
		return fmt.Errorf("nothing was enqueued, another writer was in the way; run it again: %w", err)
	}
	return fmt.Errorf("nothing was enqueued: %w", err)
}

func (a *outboxAdder) audit(ctx context.Context, tx pgx.Tx, schema, who string, got added) error {
	op := audit.NewOperation(who, "outbox add", "outbox "+schema, "")
	return audit.Write(ctx, tx, schema, op, audit.Entry{
		Outcome: fmt.Sprintf("%d enqueued", got.Enqueued), Detail: map[string]any{"file": a.file, "lines": got.Lines, "known": got.Known},
	})
}

// commitError tells a commit that was refused from one whose answer was lost.
func commitError(err error) error {
	if err == nil {
		return nil
	}
	if _, refused := errors.AsType[*pgconn.PgError](err); refused || errors.Is(err, pgx.ErrTxCommitRollback) {
		return nothingEnqueued(err)
	}
	return fmt.Errorf("the answer to COMMIT was lost, so all messages are enqueued, or none; "+
		"look with `surefoot outbox show ID` before adding them again: %w", err)
}

// consume checks every line and hands batches on, until the first fault; after that it only goes on checking.
func (a *outboxAdder) consume(ctx context.Context, lines <-chan line, write func([]message.Message) (int, error)) (added, error) {
	got := added{IDs: []string{}}
	var faults lineFaults
	var batch []message.Message
	bytes := 0
	flush := func() error {
		n, err := write(batch)
		got.Enqueued += n
		batch, bytes = batch[:0], 0
		return err
	}
	for l := range lines {
		if l.err != nil {
			return got, errors.Join(faults.err(), l.err)
		}
		m, err := a.parse(l)
		if err != nil {
			faults.add(err)
			continue
		}
		got.add(m.ID)
		if len(faults.named) > 0 {
			continue
		}
		batch, bytes = append(batch, m), bytes+len(m.Payload)
		if len(batch) == batchMessages || bytes >= batchBytes {
			if err := flush(); err != nil {
				return got, err
			}
		}
	}
	if err := errors.Join(ctx.Err(), faults.err()); err != nil {
		return got, err
	}
	err := flush()
	if !a.session.dryRun {
		got.Known = got.Lines - got.Enqueued
	}
	return got, err
}

func (a *outboxAdder) parse(l line) (message.Message, error) {
	m, err := outbox.ParseLine(l.text, 0)
	if err == nil && a.once && m.ID == "" {
		err = errors.New("has no id, which --once needs")
	}
	if err == nil {
		err = a.routes.check(m)
	}
	if err != nil {
		return m, fmt.Errorf("line %d: %w", l.number, err)
	}
	if m.ID == "" && !a.session.dryRun {
		m.ID = message.NewID()
	}
	return m, nil
}

func (a *outboxAdder) render(got added) error {
	if a.session.output == formatName {
		if got.MoreIDs > 0 {
			a.session.note("%d more ids are not told; give the messages ids of your own", got.MoreIDs)
		}
		return render(a.session, listing[string]{Items: got.IDs, Name: func(id string) string { return id }})
	}
	return renderOne(a.session, got, "",
		column[added]{"lines", func(r added) string { return strconv.Itoa(r.Lines) }},
		column[added]{"enqueued", func(r added) string { return strconv.Itoa(r.Enqueued) }},
		column[added]{"known", func(r added) string { return strconv.Itoa(r.Known) }},
		column[added]{"ids", idsText})
}

func idsText(r added) string {
	text := strings.Join(r.IDs[:min(len(r.IDs), shownIDs)], ", ")
	if more := len(r.IDs) + r.MoreIDs - shownIDs; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
