package cli

import (
	"fmt"
	"strconv"

	"github.com/surefoot-mq/surefoot/internal/demo"
)

// showAccount prints the account and fails when something is wrong with it.
func (s *session) showAccount(a *demo.Account) error {
	if err := s.renderAccount(a); err != nil {
		return err
	}
	if n := len(a.Violations); n > 0 {
		return fmt.Errorf("%d things are unaccounted for or wrong; the first: %s", n, a.Violations[0])
	}
	return nil
}

// renderAccount prints the account: as one JSON object, or as tables.
func (s *session) renderAccount(a *demo.Account) error {
	switch s.output {
	case formatJSON:
		return writeJSON(s.env.Stdout, a, "  ")
	case formatLines:
		return writeJSON(s.env.Stdout, a, "")
	case formatTable, formatName:
	}
	for _, rows := range [][][]string{orderRows(a), eventRows(a), queueRows(a), deadRows(a)} {
		if len(rows) == 1 {
			continue
		}
		if _, err := fmt.Fprintln(s.env.Stdout); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
		if err := writeTable(s.env.Stdout, rows); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(s.env.Stdout, "\nviolations: %d\n", len(a.Violations)); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	for _, violation := range a.Violations {
		if _, err := fmt.Fprintln(s.env.Stdout, "  "+Escape(violation, maxCell)); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
	}
	return nil
}

func orderRows(a *demo.Account) [][]string {
	rows := [][]string{{"ORDERS", "REASON", "COUNT", "CHARGED", "KEPT"}}
	var all demo.OrderLine
	for _, l := range a.Orders {
		rows = append(rows, []string{l.Status, l.Reason, strconv.Itoa(l.Orders), strconv.Itoa(l.Charged), cents(l.KeptCents)})
		all.Orders, all.Charged, all.KeptCents = all.Orders+l.Orders, all.Charged+l.Charged, all.KeptCents+l.KeptCents
	}
	return append(rows, []string{"all", "", strconv.Itoa(all.Orders), strconv.Itoa(all.Charged), cents(all.KeptCents)})
}

func cents(n int64) string { return fmt.Sprintf("%d.%02d", n/100, n%100) }

func eventRows(a *demo.Account) [][]string {
	rows := [][]string{{"EVENTS", "ENQUEUED", "PUBLISHED", "AGAIN", "DUE", "HANDLED", "DEAD", "LOST"}}
	all := demo.EventLine{Type: "all"}
	for _, l := range a.Events {
		rows = append(rows, eventRow(l))
		all.Enqueued, all.Published, all.Again = all.Enqueued+l.Enqueued, all.Published+l.Published, all.Again+l.Again
		all.Due, all.Handled, all.Dead, all.Lost = all.Due+l.Due, all.Handled+l.Handled, all.Dead+l.Dead, all.Lost+l.Lost
	}
	return append(rows, eventRow(all))
}

func eventRow(l demo.EventLine) []string {
	return append([]string{l.Type}, numbers(l.Enqueued, l.Published, l.Again, l.Due, l.Handled, l.Dead, l.Lost)...)
}

func queueRows(a *demo.Account) [][]string {
	rows := [][]string{{"QUEUES", "DUE", "HANDLED", "REPEATS", "RETRIED", "TO DLQ", "REDRIVEN", "DEAD", "LOST"}}
	for _, l := range a.Queues {
		rows = append(rows, append([]string{l.Queue}, numbers(l.Due, l.Handled, l.Repeats, l.Retried, l.Buried, l.Redriven, l.Dead, l.Lost)...))
	}
	return rows
}

func deadRows(a *demo.Account) [][]string {
	rows := [][]string{{"DEAD LETTERS", "TYPE", "ERROR CLASS", "COUNT"}}
	for _, l := range a.Dead {
		rows = append(rows, []string{l.Queue, l.Type, l.ErrorClass, strconv.Itoa(l.Letters)})
	}
	return rows
}

func numbers(all ...int) []string {
	texts := make([]string, len(all))
	for i, n := range all {
		texts[i] = strconv.Itoa(n)
	}
	return texts
}
