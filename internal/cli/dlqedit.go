package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
)

func dlqEdit(s *session) *cobra.Command {
	e := &letterEditor{session: s}
	cmd := &cobra.Command{
		Use: "edit --queue QUEUE --id ID --reason TEXT", Short: "Replace a dead letter by a changed message, and send that to work", Args: cobra.NoArgs,
		Long: "Replace a dead letter by a changed message, and send that to work. It is a new message with an id of its own, which names the\n" +
			"old one in its header sf-edited-from; the old one goes into the archive, and what differs is kept. Get the body with\n" +
			"`surefoot dlq show --payload all` or `surefoot dlq export`. A message that was processed, or may have been, is refused: its effects\n" +
			"would be there twice, under two ids; --allow-reprocess takes it all the same. --dry-run shows what differs.",
		RunE: func(cmd *cobra.Command, _ []string) error { return e.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.StringVar(&e.request.Queue, "queue", "", "the work `queue`, or its dead-letter queue (required)")
	flags.StringVar(&e.request.ID, "id", "", "the message's `id` (required)")
	flags.StringVar(&e.body, "body", "", "take the new body from this `file`; - is stdin")
	flags.StringArrayVar(&e.headers, "header", nil, "set a header of the producer, as text: `NAME=VALUE`; may be repeated")
	flags.StringArrayVar(&e.request.RemoveHeaders, "remove-header", nil, "remove the header of this `name`; may be repeated")
	flags.StringVar(&e.request.Reason, "reason", "", "why, for the audit (required)")
	flags.BoolVar(&e.request.AllowReprocess, "allow-reprocess", false, "also what was processed, or died before what the inbox remembers")
	waitFlag(flags, &e.request.Wait)
	s.changeFlags(cmd)
	s.outputFlag(cmd)
	return cmd
}

type letterEditor struct {
	session *session
	request deadletter.EditRequest
	body    string
	headers []string
}

// maxEditedBody bounds what is read as a new body; the broker has a limit of its own.
const maxEditedBody = 128 << 20

func (e *letterEditor) run(ctx context.Context) error {
	s := e.session
	err := missing("dlq edit", "`surefoot dlq show` lists ids; the reason is kept in the audit",
		required{"--queue", e.request.Queue != ""}, required{"--id", e.request.ID != ""}, required{"--reason", strings.TrimSpace(e.request.Reason) != ""})
	if err != nil {
		return err
	}
	if err := e.changes(); err != nil {
		return err
	}
	d, who, err := s.deadLetters(ctx)
	if err != nil {
		return err
	}
	e.request.Who, e.request.DryRun, e.request.Waiting = who, s.dryRun, s.waiting(e.request.Queue)
	if !s.yes {
		e.request.Confirm = func(ctx context.Context, edit deadletter.Edit) error {
			for _, c := range edit.Diff {
				s.note("%s: %s -> %s", c.Field, orNothing(c.Old), orNothing(c.New))
			}
			return s.confirm(ctx, question{Verb: "replace", Count: 1, Thing: "message", Target: deadletter.DLQ(edit.Queue) + " by " + edit.NewID + " in " + edit.Queue})
		}
	}
	edit, err := d.Edit(ctx, e.request)
	if err != nil {
		return badRequest(err)
	}
	columns := []column[deadletter.Edit]{
		{"operation", func(e deadletter.Edit) string { return e.Operation.String() }},
		{"replaced", func(e deadletter.Edit) string { return e.OldID }},
		{"by", func(e deadletter.Edit) string { return e.NewID }},
	}
	for _, c := range edit.Diff {
		columns = append(columns, column[deadletter.Edit]{c.Field, func(deadletter.Edit) string { return orNothing(c.Old) + " -> " + orNothing(c.New) }})
	}
	return renderOne(s, edit, edit.NewID, columns...)
}

// changes reads the flags that say what is changed.
func (e *letterEditor) changes() error {
	e.request.SetHeaders = map[string]string{}
	for _, text := range e.headers {
		name, value, found := strings.Cut(text, "=")
		if !found || name == "" {
			return usageErrorf("write NAME=VALUE", "--header cannot be %q", text)
		}
		e.request.SetHeaders[name] = value
	}
	if e.body == "" {
		return nil
	}
	source := e.session.env.Stdin
	if e.body == "-" {
		if !e.session.yes && !e.session.dryRun {
			return usageErrorf("give --yes, or a file", "stdin cannot hold both the body and an answer")
		}
	} else {
		file, err := os.Open(e.body)
		if err != nil {
			return fmt.Errorf("read the new body: %w", err)
		}
		defer file.Close()
		source = file
	}
	body, err := io.ReadAll(io.LimitReader(source, maxEditedBody+1))
	if err != nil {
		return fmt.Errorf("read the new body: %w", err)
	}
	if len(body) > maxEditedBody {
		return usageErrorf("", "the new body has more than %d bytes", maxEditedBody)
	}
	e.request.Body = body
	return nil
}

func orNothing(text *string) string {
	if text == nil {
		return "(nothing)"
	}
	return *text
}

// editedFrom is the id of the message that a dead letter has replaced.
func editedFrom(l *deadletter.Letter) string {
	id, _ := l.Headers[deadletter.HeaderEditedFrom].(string)
	return id
}
