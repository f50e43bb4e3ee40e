package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
)

func dlqRestore(s *session) *cobra.Command {
	var (
		queue, operation, reason string
		ids                      []string
	)
	cmd := &cobra.Command{
		Use: "restore --queue QUEUE", Short: "Put discarded messages back into their dead-letter queue, up to 30 days later", Args: cobra.NoArgs,
		Long: "Put messages that `dlq discard` has dropped back into the dead-letter queue, behind what is there. Choose them by the\n" +
			"operation of the discard (its run, or `surefoot audit ls`), by their ids, or by both. They are not redriven.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := deadletter.RestoreRequest{Queue: queue, IDs: ids, DryRun: s.dryRun, Reason: strings.TrimSpace(reason)}
			err := missing("dlq restore", "`surefoot dlq ls` lists queues, `surefoot audit ls` operations",
				required{"--queue", queue != ""}, required{"--operation or --id", operation != "" || len(ids) > 0})
			if err != nil {
				return err
			}
			if operation != "" {
				if r.Operation, err = deadletter.OperationOf(operation); err != nil {
					return badRequest(err)
				}
			}
			d, who, err := s.deadLetters(cmd.Context())
			if err != nil {
				return err
			}
			r.Who = who
			if !s.yes {
				r.Confirm = func(ctx context.Context, count int) error {
					return s.confirm(ctx, question{Verb: "restore", Count: count, Thing: "message", Target: deadletter.DLQ(queue)})
				}
			}
			told := s.progress("restored")
			r.Progress = func(done int) { told.reach(done, 0) }
			result, err := d.Restore(cmd.Context(), r)
			told.end()
			return s.returned(result, "restored", err)
		},
	}
	cmd.Flags().StringVar(&queue, "queue", "", "the work `queue`, or its dead-letter queue (required)")
	cmd.Flags().StringVar(&operation, "operation", "", "what was discarded by this operation, by its `id`")
	cmd.Flags().StringArrayVar(&ids, "id", nil, "only this message `id`; may be repeated")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	s.changeFlags(cmd)
	s.outputFlag(cmd)
	return cmd
}

// returned shows what came back and makes the command's error of it.
func (s *session) returned(result deadletter.Returned, verb string, err error) error {
	if err == nil || result.Done > 0 {
		shown := verb
		done := result.Done
		if result.DryRun {
			shown, done = "would be "+verb, result.Found
		}
		if rendered := renderOne(s, result, result.Operation.String(),
			column[deadletter.Returned]{"operation", func(r deadletter.Returned) string { return r.Operation.String() }},
			column[deadletter.Returned]{"found", func(r deadletter.Returned) string { return strconv.Itoa(r.Found) }},
			column[deadletter.Returned]{shown, func(deadletter.Returned) string { return strconv.Itoa(done) }},
		); rendered != nil {
			return rendered
		}
	}
	if _, chosen := errors.AsType[*exitError](err); chosen || errors.Is(err, context.Canceled) {
		return err
	}
	if err = badRequest(err); err != nil && result.Done > 0 {
		return partly(fmt.Errorf("%d of %d %s, then: %w", result.Done, result.Found, verb, err))
	}
	return err
}

func dlqExport(s *session) *cobra.Command {
	var choose chooseFlags
	cmd := &cobra.Command{
		Use: "export --queue QUEUE", Short: "Write dead letters to stdout, whole, as JSON lines; the queue keeps them", Args: cobra.NoArgs,
		Long: "Write dead letters to stdout, one JSON object a line, the oldest first: every property, every header with its type, every\n" +
			"byte of the body (as text when it is JSON, else base64). `surefoot dlq import` reads it. Nothing is changed; meanwhile the\n" +
			"queue is locked against other operations. Bodies hold what producers sent: treat the file like the data itself.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := choose.filter(time.Now())
			if err != nil {
				return err
			}
			d, who, err := s.deadLetters(cmd.Context())
			if err != nil {
				return err
			}
			out := bufio.NewWriterSize(s.env.Stdout, 64<<10)
			count, err := d.Export(cmd.Context(), deadletter.ExportRequest{
				Queue: choose.queue, Filter: filter, Who: who, Wait: choose.wait, Waiting: s.waiting(choose.queue),
				Write: func(r deadletter.Record) error { return writeJSON(out, r, "") },
			})
			if flushed := out.Flush(); flushed != nil {
				err = errors.Join(err, fmt.Errorf("write output: %w", flushed))
			}
			if err == nil {
				s.note("exported %s", counted(count, "message"))
			}
			return badRequest(err)
		},
	}
	choose.add(cmd.Flags())
	return cmd
}

func dlqImport(s *session) *cobra.Command {
	var queue, reason string
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Put exported messages into dead-letter queues", Args: cobra.ExactArgs(1),
		Long: "Put the messages of an export (- reads stdin) into the dead-letter queues that they name, or into that of --queue, under\n" +
			"the same ids. All lines are checked before the first is sent. Bring them to work with `surefoot dlq redrive`. A message\n" +
			"that is in its queue already is then there twice; the inbox makes that one effect.",
		RunE: func(cmd *cobra.Command, args []string) error {
			d, who, err := s.deadLetters(cmd.Context())
			if err != nil {
				return err
			}
			r := deadletter.ImportRequest{
				Open: func() (io.ReadCloser, error) { return os.Open(args[0]) }, Queue: queue, DryRun: s.dryRun, Who: who, Reason: strings.TrimSpace(reason),
			}
			if args[0] == "-" {
				if !s.yes && !s.dryRun {
					return usageErrorf("give --yes, or a file", "stdin cannot hold both the messages and an answer")
				}
				if r.Open, err = s.spool(); err != nil {
					return err
				}
			}
			if !s.yes {
				r.Confirm = func(ctx context.Context, counts map[string]int) error {
					total, names := 0, make([]string, 0, len(counts))
					for _, queue := range slices.Sorted(maps.Keys(counts)) {
						total, names = total+counts[queue], append(names, fmt.Sprintf("%s (%d)", deadletter.DLQ(queue), counts[queue]))
					}
					return s.confirm(ctx, question{Verb: "import", Count: total, Target: counted(total, "message") + " into " + strings.Join(names, ", ")})
				}
			}
			told := s.progress("imported")
			r.Progress = func(done int) { told.reach(done, 0) }
			result, err := d.Import(cmd.Context(), r)
			told.end()
			return s.returned(result, "imported", err)
		},
	}
	cmd.Flags().StringVar(&queue, "queue", "", "the work `queue` into whose dead-letter queue all go; default that of each message")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the audit")
	s.changeFlags(cmd)
	s.outputFlag(cmd)
	return cmd
}

// maxSpool bounds what is read from stdin, which can be read only once.
const maxSpool = 256 << 20

func (s *session) spool() (func() (io.ReadCloser, error), error) {
	all, err := io.ReadAll(io.LimitReader(s.env.Stdin, maxSpool+1))
	if err != nil {
		return nil, fmt.Errorf("read stdin: %w", err)
	}
	if len(all) > maxSpool {
		return nil, usageErrorf("write it to a file first", "stdin has more than %d bytes", maxSpool)
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(all)), nil }, nil
}
