package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/timeline"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

func messageCommand(s *session) *cobra.Command {
	return noun("message", "See one message's whole way", messageShow(s))
}

// lookDepth is how deep a dead-letter queue may be that is looked into without being asked to.
const lookDepth = 10_000

// messageShower carries out `message show`.
type messageShower struct {
	session *session
	id      string
	look    bool
	asked   bool // --look was given
	preview int  // bytes of the payload; negative: none
	wait    time.Duration
}

// shownMessage is a timeline as it is printed.
type shownMessage struct {
	timeline.Timeline
	// Payloads only with --payload.
	Payloads []shownPayload `json:"payloads,omitempty"`
}

type shownPayload struct {
	Place string `json:"place"`
	Size  int    `json:"size"`
	// Text is the beginning of the payload; base64 when Encoding says so.
	Text     string `json:"text"`
	Encoding string `json:"encoding"`

	bytes []byte
}

func messageShow(s *session) *cobra.Command {
	m := &messageShower{session: s}
	payload := "0"
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show a message's whole way: outbox, attempts, dead letters, redrives, effects, and what is not known", Args: cobra.ExactArgs(1),
		Long: "Show what every store knows of a message, by time: its row in the outbox, what handlers committed, its dead letters, redrives,\n" +
			"edits, what operators did, the messages that it caused and that are still in the outbox; and what no store can tell, such as when it\n" +
			"was confirmed. Where the index says that it lies in a dead-letter queue, that queue is looked into for the attempts, if it is\n" +
			fmt.Sprintf("not deeper than %d; --look does so in any case, --look=false not at all. Nothing is changed. The outbox is searched for\n", lookDepth) +
			"at most five seconds. Payloads are only shown with --payload.",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if m.preview, err = previewSize(payload); err != nil {
				return err
			}
			m.asked = cmd.Flags().Changed("look")
			m.id = args[0]
			return m.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&m.look, "look", true, "look into the dead-letter queues that it lies in, for its attempts")
	cmd.Flags().StringVar(&payload, "payload", "0", "the most `bytes` of the payload: a size such as 64KiB, 0 for none, all for all")
	waitFlag(cmd.Flags(), &m.wait)
	s.outputFlag(cmd)
	return cmd
}

func (m *messageShower) run(ctx context.Context) error {
	db, err := m.session.database(ctx)
	if err != nil {
		return err
	}
	found, err := timeline.Of(ctx, db.pool, db.schema, m.id)
	if errors.Is(err, timeline.ErrBadID) {
		return usageErrorf("", "%w", err)
	}
	if err != nil {
		return err
	}
	shown := shownMessage{Timeline: found}
	if err := m.outboxPayload(ctx, db, &shown); err != nil {
		return err
	}
	for _, letter := range found.Letters {
		if err := m.lookAt(ctx, letter, &shown); err != nil {
			return err
		}
	}
	if m.session.output != formatTable {
		return renderOne(m.session, shown, shown.ID)
	}
	return m.print(&shown)
}

// outboxPayload reads the payload of a row that is still in the outbox, if it is asked for.
func (m *messageShower) outboxPayload(ctx context.Context, db *database, shown *shownMessage) error {
	if m.preview < 0 || !strings.HasPrefix(strings.Join(shown.Places, "\n"), "in the outbox") {
		return nil
	}
	rows, err := outbox.Find(ctx, db.pool, db.schema, shown.ID)
	if err != nil {
		return err
	}
	for _, row := range rows {
		shown.Payloads = append(shown.Payloads, newPayload("outbox, "+row.State, row.Message.Payload, m.preview))
	}
	return nil
}

// newPayload cuts no character of a text in two.
func newPayload(place string, payload []byte, most int) shownPayload {
	end, text := min(len(payload), most), utf8.Valid(payload)
	for text && end < len(payload) && !utf8.RuneStart(payload[end]) {
		end--
	}
	p := shownPayload{Place: place, Size: len(payload), bytes: payload[:end]}
	if p.Text, p.Encoding = string(p.bytes), "text"; !text {
		p.Text, p.Encoding = base64.StdEncoding.EncodeToString(p.bytes), "base64"
	}
	return p
}

// lookAt looks for the message where the index has it. Whatever keeps it from that is said in the timeline, and is no failure.
func (m *messageShower) lookAt(ctx context.Context, at timeline.Letter, shown *shownMessage) error {
	dlq := deadletter.DLQ(at.Queue)
	unknown := func(why string) {
		shown.Unknown = append(shown.Unknown, "Its attempts, which stand in the message in "+dlq+": "+why)
	}
	switch {
	case !m.look:
		unknown("--look=false.")
		return nil
	case at.Depth > lookDepth && !m.asked:
		unknown(fmt.Sprintf("the queue holds about %d; --look walks over them.", at.Depth))
		return nil
	}
	letters, err := m.letters(ctx, at)
	switch {
	case ctx.Err() != nil:
		return err
	case err != nil:
		unknown(err.Error())
		return nil
	case len(letters) == 0:
		unknown("the message is not there any more, or another broker's: the index is behind. `surefoot dlq groups --scan` brings it into line.")
		return nil
	}
	for i := range letters {
		l := &letters[i]
		shown.AddLetter(at.Queue, foundOf(l))
		if m.preview > 0 {
			p := newPayload(dlq, l.Payload.Bytes(), m.preview)
			p.Size = l.Size
			shown.Payloads = append(shown.Payloads, p)
		}
	}
	return nil
}

func (m *messageShower) letters(ctx context.Context, at timeline.Letter) ([]deadletter.Letter, error) {
	d, who, err := m.session.deadLetters(ctx)
	if err != nil {
		return nil, err
	}
	return d.Show(ctx, deadletter.ShowRequest{
		Queue: at.Queue, Filter: deadletter.Filter{IDs: []string{m.id}}, Limit: 1, Preview: m.preview, Who: who, Wait: m.wait, Waiting: m.session.waiting(at.Queue),
	})
}

func foundOf(l *deadletter.Letter) timeline.Found {
	f := timeline.Found{
		Type: l.Type, Key: l.Key, Source: l.Source, CorrelationID: l.CorrelationID, CausationID: l.CausationID, TraceParent: l.TraceParent,
	}
	if l.Failure == nil {
		return f
	}
	for _, a := range l.Failure.Log {
		f.Attempts = append(f.Attempts, message.Attempt{Number: a.Number, At: a.At.Time, Class: a.Class, Type: a.Type, Message: a.Message, Host: a.Host})
	}
	return f
}

func (m *messageShower) print(shown *shownMessage) error {
	out := m.session.env.Stdout
	if err := writeTable(out, m.session.messageRows(shown)); err != nil {
		return err
	}
	rows := [][]string{{"TIME", "STORE", "QUEUE", "WHAT", "DETAIL", "WHO", "OPERATION"}}
	for _, step := range shown.Steps {
		rows = append(rows, []string{stampText(step.At.Time), string(step.Store), step.Queue, step.What, step.Detail, step.Who, operationText(step.Operation)})
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	if err := writeTable(out, rows); err != nil {
		return err
	}
	var text strings.Builder
	text.WriteString("\nNot known:\n")
	for _, unknown := range shown.Unknown {
		fmt.Fprintf(&text, "- %s\n", Escape(unknown, maxErrorText))
	}
	for _, p := range shown.Payloads {
		// Escapes take more room than what they stand for.
		fmt.Fprintf(&text, "\npayload (%s, %d of %d bytes):\n%s\n", Escape(p.Place, maxCell), len(p.bytes), p.Size, EscapeBlock(string(p.bytes), 6*len(p.bytes)+64))
	}
	if _, err := fmt.Fprint(out, text.String()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// messageRows are who the message is, where, and what it has to do with; what is not known is left out.
func (s *session) messageRows(shown *shownMessage) [][]string {
	rows := [][]string{{"message", shown.ID}}
	for _, row := range [][]string{
		{"type", shown.Type}, {"key", shown.Key}, {"source", shown.Source}, {"correlation", shown.CorrelationID}, {"trace", s.traceText(shown.TraceID)},
	} {
		if row[1] != "" {
			rows = append(rows, row)
		}
	}
	for _, place := range shown.Places {
		rows = append(rows, []string{"is", place})
	}
	for _, link := range shown.Links {
		text := link.ID
		if link.Type != "" {
			text += " " + link.Type
		}
		if link.Place != "" {
			text += " (" + link.Place + ")"
		}
		rows = append(rows, []string{link.Relation, text})
	}
	return rows
}

func operationText(id uuid.NullUUID) string {
	if !id.Valid {
		return ""
	}
	return id.UUID.String()
}
