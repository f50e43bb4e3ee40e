package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf16"
	"unicode/utf8"
)

// format is how data is printed; it is a flag's value.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatLines format = "jsonl"
	formatName  format = "name"
)

// String is the flag's text.
func (f *format) String() string { return string(*f) }

// Type names the flag's kind in help.
func (f *format) Type() string { return "format" }

// Set reads the flag.
func (f *format) Set(text string) error {
	switch format(text) {
	case formatTable, formatJSON, formatLines, formatName:
		*f = format(text)
		return nil
	}
	return errors.New("use table, json, jsonl or name")
}

// maxCell bounds a cell of a table, in bytes.
const maxCell = 512

// column is one column of a table.
type column[T any] struct {
	Title string
	Text  func(T) string
}

// listing is a list of things of one kind, in every format.
type listing[T any] struct {
	// Items are printed as JSON by their tags.
	Items []T
	// Empty is told on stderr when a table has no rows.
	Empty string
	// Name identifies an item to another command.
	Name func(T) string
	// Columns make the table. Texts are escaped and bounded here.
	Columns []column[T]
}

// render prints a list in the chosen format.
func render[T any](s *session, l listing[T]) error {
	switch s.output {
	case formatJSON:
		if l.Items == nil {
			l.Items = []T{}
		}
		return writeJSON(s.env.Stdout, l.Items, "  ")
	case formatLines:
		for _, item := range l.Items {
			if err := writeJSON(s.env.Stdout, item, ""); err != nil {
				return err
			}
		}
		return nil
	case formatName:
		for _, item := range l.Items {
			if _, err := fmt.Fprintln(s.env.Stdout, Escape(l.Name(item), maxCell)); err != nil {
				return fmt.Errorf("write output: %w", err)
			}
		}
		return nil
	case formatTable:
	}
	return renderTable(s, l)
}

func renderTable[T any](s *session, l listing[T]) error {
	if len(l.Items) == 0 {
		if l.Empty != "" {
			s.note("%s", l.Empty)
		}
		return nil
	}
	titles := make([]string, len(l.Columns))
	for i, column := range l.Columns {
		titles[i] = column.Title
	}
	rows := [][]string{titles}
	for _, item := range l.Items {
		row := make([]string, len(l.Columns))
		for i, column := range l.Columns {
			row[i] = column.Text(item)
		}
		rows = append(rows, row)
	}
	return writeTable(s.env.Stdout, rows)
}

// renderOne prints one thing: in a table one line for each of its columns.
func renderOne[T any](s *session, item T, name string, columns ...column[T]) error {
	switch s.output {
	case formatJSON:
		return writeJSON(s.env.Stdout, item, "  ")
	case formatLines:
		return writeJSON(s.env.Stdout, item, "")
	case formatName:
		_, err := fmt.Fprintln(s.env.Stdout, Escape(name, maxCell))
		return err
	case formatTable:
	}
	rows := make([][]string, 0, len(columns))
	for _, column := range columns {
		rows = append(rows, []string{column.Title, column.Text(item)})
	}
	return writeTable(s.env.Stdout, rows)
}

// writeTable aligns rows. Cells are escaped, and empty ones shown as a dash.
func writeTable(w io.Writer, rows [][]string) error {
	table := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			if cells[i] = Escape(cell, maxCell); cell == "" {
				cells[i] = "-"
			}
		}
		if _, err := fmt.Fprintln(table, strings.Join(cells, "\t")); err != nil {
			return fmt.Errorf("write output: %w", err)
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// writeJSON prints a value on lines of its own. What could harm a terminal is written as \u escapes, which
// mean the same to every reader of JSON.
func writeJSON(w io.Writer, value any, indent string) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	if _, err := w.Write(escapeJSON(text.Bytes())); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// escapeJSON works on finished JSON: runes that are not printable can only stand inside its strings, except
// for the line feeds between the lines.
func escapeJSON(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for at := 0; at < len(text); {
		char, size := utf8.DecodeRune(text[at:])
		switch {
		case char == '\n' || printable(char):
			out = append(out, text[at:at+size]...)
		case char > 0xffff:
			high, low := utf16.EncodeRune(char)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, char)
		}
		at += size
	}
	return out
}
