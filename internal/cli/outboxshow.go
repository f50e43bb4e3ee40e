package cli

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

// maxPreview bounds the payload that is shown, in bytes.
const maxPreview = 400

// shownRow is a row of the outbox as it is printed.
type shownRow struct {
	State         string    `json:"state"`
	Shard         int16     `json:"shard"`
	Row           int64     `json:"row"`
	ID            string    `json:"id"`
	Type          string    `json:"type"`
	Key           string    `json:"key"`
	Exchange      string    `json:"exchange"`
	RoutingKey    string    `json:"routing_key"`
	CreatedAt     time.Time `json:"created_at"`
	OccurredAt    time.Time `json:"occurred_at"`
	Source        string    `json:"source"`
	CorrelationID string    `json:"correlation_id"`
	CausationID   string    `json:"causation_id"`
	RequestID     string    `json:"request_id"`
	ContentType   string    `json:"content_type"`
	Headers       string    `json:"headers"`
	PayloadBytes  int       `json:"payload_bytes"`
	// Preview is the beginning of the payload: text, or base64 when it is none.
	Preview         string `json:"payload_preview"`
	PreviewEncoding string `json:"payload_preview_encoding"`

	// WaitsFor says why a pending row is still here; empty: its turn.
	WaitsFor string         `json:"waits_for"`
	Parked   *outbox.Parked `json:"parked"`
}

func outboxShow(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show the rows of a message, pending or parked, what they wait for, and the beginning of the payload", Args: cobra.ExactArgs(1),
		Long: "Show the rows of a message id. A message that was published is not here any more. Looking for one that is\n" +
			"pending reads the whole outbox.",
		RunE: func(cmd *cobra.Command, args []string) error {
			rows, err := s.shownRows(cmd, args[0])
			if err != nil {
				return err
			}
			if s.output == formatTable {
				return s.showBlocks(rows)
			}
			return render(s, listing[shownRow]{Items: rows, Name: func(r shownRow) string { return r.ID }})
		},
	}
	s.outputFlag(cmd)
	return cmd
}

func (s *session) shownRows(cmd *cobra.Command, id string) ([]shownRow, error) {
	db, err := s.database(cmd.Context())
	if err != nil {
		return nil, err
	}
	found, err := outbox.Find(cmd.Context(), db.pool, db.schema, id)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("message %s is not in the outbox: it was published, discarded, or never enqueued; "+
			"`surefoot message show` asks every store for its id", id)
	}
	parked, err := outbox.ListParked(cmd.Context(), db.pool, db.schema, outbox.Filter{IDs: []string{id}, Limit: maxParked})
	if err != nil {
		return nil, err
	}
	rows := make([]shownRow, len(found))
	for i, f := range found {
		rows[i] = shown(f)
		if f.State == outbox.StatePending {
			if rows[i].WaitsFor, err = outbox.WhyPending(cmd.Context(), db.pool, db.schema, f.Shard, f.Row); err != nil {
				return nil, err
			}
		}
		at := slices.IndexFunc(parked, func(p outbox.Parked) bool { return p.Shard == f.Shard && p.Row == f.Row })
		if at >= 0 {
			rows[i].Parked = &parked[at]
		}
	}
	return rows, nil
}

func shown(f outbox.Stored) shownRow {
	m := f.Message
	row := shownRow{
		State: f.State, Shard: f.Shard, Row: f.Row, ID: m.ID, Type: m.Type, Key: m.Key, Exchange: m.Exchange, RoutingKey: m.Route(),
		CreatedAt: f.CreatedAt, OccurredAt: m.OccurredAt, Source: m.Source, CorrelationID: m.CorrelationID, CausationID: m.CausationID,
		RequestID: m.RequestID, ContentType: m.ContentType, PayloadBytes: len(m.Payload),
	}
	if headers, err := message.HeadersJSON(m.Headers); err == nil {
		row.Headers = message.Clip(string(headers), maxPreview)
	}
	if f.HeadersFault != "" {
		row.Headers = "cannot be read: " + f.HeadersFault
	}
	row.Preview, row.PreviewEncoding = preview(m.Payload)
	return row
}

func preview(payload []byte) (text, encoding string) {
	if utf8.Valid(payload) {
		return message.Clip(string(payload), maxPreview), "text"
	}
	return base64.StdEncoding.EncodeToString(payload[:min(len(payload), maxPreview/2)]), "base64"
}

// showBlocks prints each row as a block of lines.
func (s *session) showBlocks(rows []shownRow) error {
	for i, r := range rows {
		if i > 0 {
			fmt.Fprintln(s.env.Stdout)
		}
		cells := [][]string{
			{"id", r.ID},
			{"state", r.State},
			{"type", r.Type},
			{"key", r.Key},
			{"exchange", r.Exchange},
			{"routing key", r.RoutingKey},
			{"row", fmt.Sprintf("%d/%d", r.Shard, r.Row)},
			{"enqueued", stampText(r.CreatedAt)},
			{"occurred", stampText(r.OccurredAt)},
			{"source", r.Source},
			{"correlation", r.CorrelationID},
			{"causation", r.CausationID},
			{"request", r.RequestID},
			{"content type", r.ContentType},
			{"headers", r.Headers},
			{"payload", fmt.Sprintf("%d bytes, %s: %s", r.PayloadBytes, r.PreviewEncoding, strings.TrimSpace(r.Preview))},
		}
		if r.State == outbox.StatePending {
			cells = append(cells, []string{"waits for", cmp.Or(r.WaitsFor, "its turn")})
		}
		if p := r.Parked; p != nil {
			cells = append(cells, [][]string{
				{"tries", strconv.Itoa(p.Attempts)},
				{"reason", p.Reason},
				{"error", p.Error},
				{"parked", stampText(p.ParkedAt)},
				{"last failed", timeText(p.LastFailedAt)},
				{"next try", timeText(p.NextAt)},
			}...)
		}
		if err := writeTable(s.env.Stdout, cells); err != nil {
			return err
		}
	}
	return nil
}
