package cli

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
)

func dlqShow(s *session) *cobra.Command {
	var (
		choose  chooseFlags
		limit   = 10
		payload string
	)
	cmd := &cobra.Command{
		Use: "show --queue QUEUE", Short: "Show dead letters, the oldest first: why they failed, headers, beginning of the body", Args: cobra.NoArgs,
		Long: "Show dead letters without changing anything: content and order stay, however often it is done. Meanwhile the\n" +
			"queue is locked against redrives, discards and other looks. Text from messages is escaped.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			filter, err := choose.filter(time.Now())
			if err != nil {
				return err
			}
			preview, err := previewSize(payload)
			if err != nil {
				return err
			}
			d, who, err := s.deadLetters(cmd.Context())
			if err != nil {
				return err
			}
			letters, err := d.Show(cmd.Context(), deadletter.ShowRequest{
				Queue: choose.queue, Filter: filter, Limit: limit, Preview: preview, Who: who,
				Wait: choose.wait, Waiting: s.waiting(choose.queue),
			})
			if err != nil {
				return badRequest(err)
			}
			return s.showLetters(letters, preview)
		},
	}
	choose.add(cmd.Flags())
	boundFlag(cmd.Flags(), &limit, "limit", deadletter.MaxShow, "the most messages")
	cmd.Flags().StringVar(&payload, "payload", "512", "the most `bytes` of each body: a size such as 64KiB, 0 for none, all for all")
	s.outputFlag(cmd)
	return cmd
}

// previewSize reads --payload; the package takes 0 for its default.
func previewSize(text string) (int, error) {
	if text == "all" {
		return deadletter.MaxPreview, nil
	}
	var size config.Size
	if err := size.UnmarshalText([]byte(text)); err != nil || size > deadletter.MaxPreview {
		return 0, usageErrorf("", "--payload must be a size of at most 16MiB, or all")
	}
	if size == 0 {
		return -1, nil
	}
	return int(size), nil
}

func (s *session) showLetters(letters []deadletter.Letter, preview int) error {
	if s.output != formatTable {
		return render(s, listing[deadletter.Letter]{Items: letters, Name: func(l deadletter.Letter) string { return l.ID }})
	}
	if len(letters) == 0 {
		s.note("no message matches")
	}
	for i := range letters {
		if err := s.showLetter(&letters[i], preview); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) showLetter(l *deadletter.Letter, preview int) error {
	rows := slices.Concat(s.letterRows(l), failureRows(l), deathRows(l), headerRows(l))
	rows = slices.DeleteFunc(rows, func(row []string) bool { return row[1] == "" })
	if err := writeTable(s.env.Stdout, rows); err != nil {
		return err
	}
	for _, block := range failureBlocks(l) {
		if _, err := fmt.Fprintf(s.env.Stdout, "%s:\n%s\n", block[0], EscapeBlock(block[1], maxErrorText)); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
	}
	more := ""
	if l.Payload.Truncated() {
		more = fmt.Sprintf(" (%d of %d bytes)", len(l.Payload.Bytes()), l.Size)
	}
	// Escapes take more room than what they stand for.
	_, err := fmt.Fprintf(s.env.Stdout, "payload%s:\n%s\n\n", more, EscapeBlock(string(l.Payload.Bytes()), 6*max(preview, 0)+64))
	if err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

func (s *session) letterRows(l *deadletter.Letter) [][]string {
	return [][]string{
		{"message", fmt.Sprintf("%s (number %d in the queue)", orDash(l.ID), l.Position)},
		{"type", l.Type},
		{"key", l.Key},
		{"source", l.Source},
		{"occurred", stampText(l.OccurredAt.Time)},
		{"correlation", l.CorrelationID},
		{"causation", l.CausationID},
		{"request", l.RequestID},
		{"trace", s.traceText(telemetry.TraceID(l.TraceParent))},
		{"origin", originText(l)},
		{"attempts", strconv.Itoa(l.Attempts)},
		{"redrives", redrivesText(l)},
		{"edited from", editedFrom(l)},
		{"content type", l.ContentType},
		{"size", strconv.Itoa(l.Size)},
		{"lost headers", droppedText(l)},
	}
}

func failureRows(l *deadletter.Letter) [][]string {
	f := l.Failure
	if f == nil {
		return nil
	}
	rows := [][]string{
		{"error", classed(f.Class, f.Message)},
		{"error type", f.Type},
		{"fingerprint", f.Fingerprint},
		{"first failed", stampText(f.FirstFailedAt.Time)},
		{"last failed", stampText(f.LastFailedAt.Time)},
		{"failed on", f.Host + " " + f.Version},
	}
	return append(rows, attemptRows(l)...)
}

// attemptRows are the attempts in their order, each with the time since the one before it, and the last redrive among them.
func attemptRows(l *deadletter.Letter) (rows [][]string) {
	var last time.Time
	add := func(title string, at time.Time, text string) {
		since := ""
		if !last.IsZero() && at.After(last) {
			since = fmt.Sprintf(" (+%s)", at.Sub(last).Round(100*time.Millisecond))
		}
		rows, last = append(rows, []string{title, stampText(at) + since + " " + text}), at
	}
	redriven := l.RedrivenAt.Time
	redrive := func() {
		add("redriven", redriven, "run "+orDash(l.RedriveRun))
		redriven = time.Time{}
	}
	for _, a := range l.Failure.Log {
		// The mark of a redrive has whole seconds.
		if !redriven.IsZero() && !a.At.Time.Truncate(time.Second).Before(redriven) {
			redrive()
		}
		add(fmt.Sprintf("attempt %d", a.Number), a.At.Time, classed(a.Class, a.Message))
	}
	if !redriven.IsZero() {
		redrive()
	}
	return append(rows, earlierRows(l)...)
}

// earlierRows compare this failure with the one for which the message was redriven the last time.
func earlierRows(l *deadletter.Letter) [][]string {
	e := l.Earlier
	if e == nil {
		return nil
	}
	rows := [][]string{{"before redrive", fmt.Sprintf("%s %s, version %s", stampText(e.DiedAt.Time), classed(e.ErrorClass, e.ErrorMessage), orDash(e.Version))}}
	version := "by the same version"
	if f := l.Failure; f != nil && f.Version != e.Version {
		version = fmt.Sprintf("version %s became %s", orDash(e.Version), orDash(f.Version))
	}
	if e.Same {
		return append(rows, []string{"since then", "the same failure again, " + version})
	}
	return append(rows, []string{"since then", fmt.Sprintf("another failure (%s became %s), %s", e.Fingerprint, l.Fingerprint, version)})
}

// traceText is the trace's id, and where a person finds it.
func (s *session) traceText(id string) string {
	if link := telemetry.TraceLink(s.traceLink, id); link != "" {
		return id + "  " + link
	}
	return id
}

// failureBlocks are the texts of several lines, with their titles.
func failureBlocks(l *deadletter.Letter) [][2]string {
	if l.Failure == nil {
		return nil
	}
	return slices.DeleteFunc([][2]string{{"stack", l.Failure.Stack}, {"stderr", l.Failure.Stderr}, {"response", l.Failure.Response}},
		func(block [2]string) bool { return block[1] == "" })
}

// classed puts the class before an error's text, unless that begins with it: "panic: ...", "malformed payload: ...".
func classed(class, text string) string {
	if strings.HasPrefix(text, class) {
		return text
	}
	return class + ": " + text
}

func deathRows(l *deadletter.Letter) [][]string {
	if l.Death == nil {
		return nil
	}
	return [][]string{{"broker", fmt.Sprintf("dead-lettered it itself: %s in %s at %s", l.Death.Reason, l.Death.Queue, stampText(l.Death.At.Time))}}
}

// headerRows are the headers that are not shown otherwise, by name.
func headerRows(l *deadletter.Letter) [][]string {
	var rows [][]string
	for _, name := range slices.SortedFunc(maps.Keys(l.UserHeaders), cmp.Compare[string]) {
		rows = append(rows, []string{"header " + name, fmt.Sprint(l.UserHeaders[name])})
	}
	return rows
}

// droppedText tells of headers that had to go when the message was published again.
func droppedText(l *deadletter.Letter) string {
	if n, _ := message.Integer(l.Headers[message.HeaderDropped]); n > 0 {
		return fmt.Sprintf("%d of the producer's, the largest: with them the message could not have been moved", n)
	}
	return ""
}

func originText(l *deadletter.Letter) string {
	if l.OriginQueue == "" {
		return ""
	}
	return fmt.Sprintf("%s, routing key %s, queue %s", orDash(l.Exchange), orDash(l.RoutingKey), l.OriginQueue)
}

func redrivesText(l *deadletter.Letter) string {
	if l.Redrives == 0 {
		return ""
	}
	return fmt.Sprintf("%d, the last at %s", l.Redrives, stampText(l.RedrivenAt.Time))
}
