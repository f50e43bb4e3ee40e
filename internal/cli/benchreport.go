package cli

import (
	"fmt"
	"strconv"

	"github.com/surefoot-mq/surefoot/internal/bench"
)

// showReport prints a report: as one JSON object, or as tables of arms and figures.
func (s *session) showReport(r *bench.Report) error {
	switch s.output {
	case formatJSON:
		return writeJSON(s.env.Stdout, r, "  ")
	case formatLines:
		return writeJSON(s.env.Stdout, r, "")
	case formatTable, formatName:
	}
	m := r.Machine
	_, err := fmt.Fprintf(s.env.Stdout, "%d CPUs, %d MiB, %s; PostgreSQL %s (%s); RabbitMQ %s\n\n", m.CPUs, m.Memory, m.System,
		Escape(m.Postgres, maxCell), Escape(m.Settings, maxCell), Escape(m.Broker, maxCell))
	if err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	if err := writeTable(s.env.Stdout, armRows(r)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(s.env.Stdout); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return writeTable(s.env.Stdout, figureRows(r))
}

func armRows(r *bench.Report) [][]string {
	measures := []struct {
		title string
		of    func(bench.Sample) *float64
	}{
		{"PER SECOND", bench.Rate},
		{"CPU US", bench.CPU},
		{"POSTGRESQL US", bench.PostgresCPU},
		{"RABBITMQ US", bench.BrokerCPU},
		{"PEAK MIB", bench.Memory},
		{"P50 MS", bench.P50},
		{"P99 MS", bench.P99},
	}
	rows := [][]string{{"ARM", "ROUNDS"}}
	for _, m := range measures {
		rows[0] = append(rows[0], m.title)
	}
	for _, a := range r.Arms {
		row := []string{a.Name, strconv.Itoa(len(a.Samples))}
		for _, m := range measures {
			cell := ""
			if v, ok := a.Of(m.of); ok {
				cell = spreadText(v)
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return rows
}

func figureRows(r *bench.Report) [][]string {
	rows := [][]string{{"FIGURE", "MEDIAN", "LOWEST", "HIGHEST", "UNIT", "GOAL", "RESULT"}}
	for _, f := range r.Figures {
		result := ""
		if f.Met != nil {
			result = map[bool]string{true: "met", false: "MISSED"}[*f.Met]
		}
		rows = append(rows, []string{f.Name, amount(f.Median), amount(f.Min), amount(f.Max), f.Unit, goalText(f), result})
	}
	return rows
}

func goalText(f bench.Figure) string {
	switch {
	case f.Goal == nil:
		return ""
	case f.Goal.AtMost:
		return "<= " + amount(f.Goal.Value)
	}
	return ">= " + amount(f.Goal.Value)
}

// spreadText is the median with the lowest and the highest.
func spreadText(v bench.Spread) string {
	if v.Min == v.Max {
		return amount(v.Median)
	}
	return fmt.Sprintf("%s (%s-%s)", amount(v.Median), amount(v.Min), amount(v.Max))
}

// amount shows three digits that matter.
func amount(v float64) string {
	switch {
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}
