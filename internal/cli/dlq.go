package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/app"
)

func dlqCommand(s *session) *cobra.Command {
	return noun("dlq", "Look into dead-letter queues, bring messages back, or drop them with a reason",
		dlqLs(s), dlqGroups(s), dlqShow(s), dlqRedrive(s), dlqRuns(s), dlqDiscard(s), dlqRestore(s), dlqExport(s), dlqImport(s), dlqEdit(s), dlqNote(s))
}

// deadLetters makes what the dlq commands work with; who is the operator.
func (s *session) deadLetters(ctx context.Context) (d *deadletter.DeadLetters, who string, err error) {
	if who, err = s.operator(); err != nil {
		return nil, "", err
	}
	if _, err = s.config(need{database: true, amqp: true}); err != nil {
		return nil, "", err
	}
	db, err := s.database(ctx)
	if err != nil {
		return nil, "", err
	}
	logger, err := s.logger(db.config.Log)
	if err != nil {
		return nil, "", err
	}
	d, err = deadletter.New(deadletter.Options{
		Pool: db.pool, Schema: db.schema, AMQPURL: db.config.AMQP.URL.Reveal(), ManagementURL: db.config.AMQP.ManagementURL.Reveal(),
		TLS: db.config.AMQP.TLS(), Queues: app.DeadLetterQueues(db.config), Logger: logger, Host: s.env.Host, Version: s.build().Version,
	})
	return d, who, err
}

// chooseFlags are the flags that choose letters.
type chooseFlags struct {
	queue, typ, class, contains, fingerprint, since string
	ids, where                                      []string
	wait                                            time.Duration
}

func (c *chooseFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&c.queue, "queue", "", "the work `queue`, or its dead-letter queue (required)")
	flags.StringVar(&c.typ, "type", "", "only messages of this `type`")
	flags.StringVar(&c.class, "error-class", "", "only failures of this `class`, such as permanent; for the broker's own dead letters its reason, such as delivery_limit")
	flags.StringVar(&c.contains, "error-contains", "", "only failures with this `text` in the error's message or type or in a program's standard error, whatever the case")
	flags.StringVar(&c.fingerprint, "fingerprint", "", "only failures of this cause, by the `fingerprint` that surefoot dlq groups lists")
	flags.StringArrayVar(&c.where, "where", nil, "only messages whose JSON body has `FIELD=VALUE` (or FIELD!=VALUE), such as orderId=42 or items.0.sku=A-1; may be repeated, all must hold")
	flags.StringArrayVar(&c.ids, "id", nil, "only this message `id`; may be repeated")
	flags.StringVar(&c.since, "since", "", "only what failed last at this `time` or later: RFC 3339, or an age such as 2h; without a failure record the broker's time of death counts")
	waitFlag(flags, &c.wait)
}

// chooses says whether any flag narrows the choice.
func (c *chooseFlags) chooses() bool {
	return c.typ != "" || c.class != "" || c.contains != "" || c.fingerprint != "" || c.since != "" || len(c.ids) > 0 || len(c.where) > 0
}

// filter reads the flags.
func (c *chooseFlags) filter(now time.Time) (deadletter.Filter, error) {
	f := deadletter.Filter{Type: c.typ, ErrorClass: c.class, ErrorContains: c.contains, Fingerprint: c.fingerprint, IDs: c.ids}
	if c.queue == "" {
		return f, usageErrorf("see `surefoot dlq ls`", "--queue is required")
	}
	for _, text := range c.where {
		w, err := deadletter.ParseWhere(text)
		if err != nil {
			return f, badRequest(err)
		}
		f.Where = append(f.Where, w)
	}
	var err error
	f.Since, err = sinceTime(c.since, now)
	return f, err
}

// sinceTime reads --since.
func sinceTime(text string, now time.Time) (time.Time, error) {
	at, err := deadletter.ParseSince(text, now)
	if err != nil {
		return at, usageErrorf("", "--since: %w", err)
	}
	return at, nil
}

// waiting tells who has the queue.
func (s *session) waiting(queue string) func(deadletter.Holder) {
	return func(h deadletter.Holder) {
		s.note("waiting for %s: %s (%s) works on %s since %s", deadletter.DLQ(queue), h.Who, h.Action, queue, stampText(h.Since))
	}
}

// badRequest makes what the package finds wrong with a request a usage error.
func badRequest(err error) error {
	if errors.Is(err, deadletter.ErrBadRequest) {
		return usageErrorf("", "%w", err)
	}
	return err
}

// outcomeOf turns a result into the command's error, and so into its exit code.
func outcomeOf(r deadletter.Result, err error) error {
	if _, chosen := errors.AsType[*exitError](err); chosen || errors.Is(err, context.Canceled) && !errors.Is(err, deadletter.ErrLockLost) {
		return err
	}
	if err = badRequest(err); err != nil {
		if r.Done > 0 && errors.Is(err, deadletter.ErrUndecodable) {
			return partly(fmt.Errorf("%d of %d done, then: %w", r.Done, r.Found, err))
		}
		if r.Done > 0 && !r.DryRun {
			return partly(fmt.Errorf("%d of %d done, then: %w; the rest is in %s, in its order: run this again to go on", r.Done, r.Found, err, r.DLQ))
		}
		return err
	}
	if failed := r.Left.Failed(); failed > 0 && !r.DryRun {
		err := fmt.Errorf("%s could not be moved, still in %s: see problems in -o json", counted(failed, "message"), r.DLQ)
		if r.Done > 0 {
			return partly(err)
		}
		return err
	}
	return nil
}

// resultColumns leave out what happened to no message, what was found and done apart.
func resultColumns(r deadletter.Result, done string) []column[deadletter.Result] {
	count := func(title string, of func(deadletter.Result) int) column[deadletter.Result] {
		return column[deadletter.Result]{title, func(r deadletter.Result) string { return strconv.Itoa(of(r)) }}
	}
	all := []column[deadletter.Result]{
		{"run", func(r deadletter.Result) string { return r.Run.String() }},
		{"queue", func(r deadletter.Result) string { return r.Queue }},
		count("found", func(r deadletter.Result) int { return r.Found }),
		count(done, func(r deadletter.Result) int { return r.Done }),
		count("not matching", func(r deadletter.Result) int { return r.Left.NotMatching }),
		count("already processed", func(r deadletter.Result) int { return r.Left.Processed }),
		count("memory expired", func(r deadletter.Result) int { return r.Left.Expired }),
		count("in another run", func(r deadletter.Result) int { return r.Left.InRun }),
		count("missing", func(r deadletter.Result) int { return r.Left.Missing }),
		count("held back", func(r deadletter.Result) int { return r.Left.Repeaters }),
		count("of another queue", func(r deadletter.Result) int { return r.Left.OtherOrigin }),
		count("refused", func(r deadletter.Result) int { return r.Left.Refused }),
		count("not taken", func(r deadletter.Result) int { return r.Left.Undelivered }),
		count("outcome unknown", func(r deadletter.Result) int { return r.Left.Unknown }),
		count("not reached", func(r deadletter.Result) int { return r.Left.NotReached }),
		{"types", groupsText},
	}
	return slices.DeleteFunc(all, func(c column[deadletter.Result]) bool {
		return c.Title != "found" && c.Title != done && (c.Text(r) == "0" || c.Text(r) == "")
	})
}

func groupsText(r deadletter.Result) string {
	texts := make([]string, len(r.Groups))
	for i, g := range r.Groups {
		texts[i] = fmt.Sprintf("%d %s (%s)", g.Count, orDash(g.Type), orDash(g.ErrorClass))
	}
	return strings.Join(texts, ", ")
}
