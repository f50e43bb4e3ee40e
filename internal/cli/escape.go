package cli

import "github.com/surefoot-mq/surefoot/internal/escape"

// Escape makes text from a message fit for one line on a terminal, see escape.Line.
func Escape(text string, limit int) string { return escape.Line(text, limit) }

// EscapeBlock is Escape for text of several lines: line feeds and tabs are kept.
func EscapeBlock(text string, limit int) string { return escape.Block(text, limit) }

// plain tells whether text of people has at most so many bytes, and nothing that would have to be escaped.
func plain(text string, most int) bool { return len(text) <= most && Escape(text, most) == text }

func printable(char rune) bool { return escape.Printable(char) }
