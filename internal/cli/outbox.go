package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/outbox"
)

func outboxCommand(s *session) *cobra.Command {
	return noun("outbox", "Add messages to the outbox, and look after those that could not be published",
		outboxAdd(s), outboxLs(s), outboxShow(s), outboxRetry(s), outboxDiscard(s))
}

const (
	defaultParked = 100
	maxParked     = 10_000
)

// parkedFilter gives a command the flags that choose parked rows.
func parkedFilter(cmd *cobra.Command) *outbox.Filter {
	f := &outbox.Filter{}
	flags := cmd.Flags()
	flags.StringVar(&f.State, "state", "", "only rows in this `state`: retry (tried again by itself) or dead")
	flags.StringVar(&f.Key, "key", "", "only rows of this ordering `key`")
	flags.StringVar(&f.Type, "type", "", "only messages of this `type`")
	flags.IntVar(&f.Limit, "limit", defaultParked, "the most rows")
	return f
}

func checkFilter(f *outbox.Filter) error {
	switch f.State {
	case "", outbox.StateRetry, outbox.StateDead:
	default:
		return usageErrorf("", "--state is %q, but must be retry or dead", f.State)
	}
	if f.Limit < 1 || f.Limit > maxParked {
		return usageErrorf("", "--limit is %d, but must be from 1 to %d", f.Limit, maxParked)
	}
	return nil
}

func outboxLs(s *session) *cobra.Command {
	var filter *outbox.Filter
	cmd := &cobra.Command{
		Use: "ls", Short: "List parked rows with their reasons; the state of the whole outbox goes to stderr", Args: cobra.NoArgs,
		Long: "List the rows that could not be published: retry is tried again by itself, dead waits for\n" +
			"`outbox retry` or `outbox discard`. Later rows of their keys stay pending behind them, unless\n" +
			"relay.on_poison is skip. How many rows are pending (estimated beyond 100000), the age of the oldest and\n" +
			"the number of relays are told on stderr.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFilter(filter); err != nil {
				return err
			}
			db, err := s.database(cmd.Context())
			if err != nil {
				return err
			}
			summary, err := outbox.Summarize(cmd.Context(), db.pool, db.schema)
			if err != nil {
				return err
			}
			rows, err := outbox.ListParked(cmd.Context(), db.pool, db.schema, *filter)
			if err != nil {
				return err
			}
			s.note("%s", summaryText(summary))
			if len(rows) == filter.Limit {
				s.note("there may be more: this is the limit of %d", filter.Limit)
			}
			return render(s, parkedRows(rows, "no rows are parked"))
		},
	}
	filter = parkedFilter(cmd)
	s.outputFlag(cmd)
	return cmd
}

func summaryText(o outbox.Summary) string {
	about := ""
	if o.Estimated {
		about = "about "
	}
	oldest := ""
	if o.Pending > 0 {
		oldest = fmt.Sprintf(", the oldest for %s", (time.Duration(o.Oldest*1000) * time.Millisecond).Round(100*time.Millisecond))
	}
	relays := fmt.Sprintf("%d relays running", o.Relays)
	switch o.Relays {
	case 0:
		relays = "no relay is running: start one with `surefoot relay run`"
	case 1:
		relays = "1 relay running"
	}
	return fmt.Sprintf("%s%d pending%s; parked: %d retry, %d dead; %s", about, o.Pending, oldest, o.Retry, o.Dead, relays)
}

func parkedRows(rows []outbox.Parked, empty string) listing[outbox.Parked] {
	return listing[outbox.Parked]{
		Items: rows,
		Empty: empty,
		Name:  func(p outbox.Parked) string { return p.ID },
		Columns: []column[outbox.Parked]{
			{"ID", func(p outbox.Parked) string { return p.ID }},
			{"TYPE", func(p outbox.Parked) string { return p.Type }},
			{"KEY", func(p outbox.Parked) string { return p.Key }},
			{"STATE", func(p outbox.Parked) string { return p.State }},
			{"TRIES", func(p outbox.Parked) string { return strconv.Itoa(p.Attempts) }},
			{"PARKED", func(p outbox.Parked) string { return p.ParkedAt.UTC().Format(time.RFC3339) }},
			{"NEXT TRY", func(p outbox.Parked) string { return timeText(p.NextAt) }},
			{"REASON", func(p outbox.Parked) string { return p.Reason }},
			{"ERROR", func(p outbox.Parked) string { return p.Error }},
		},
	}
}

func timeText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}
