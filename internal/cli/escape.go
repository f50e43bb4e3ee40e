package cli

import "github.com/surefoot-mq/surefoot/internal/escape"

// Escape makes text from a message fit for one line on a terminal, see escape.Line.
func Escape(text string, limit int) string { return escape.Line(text, limit) }

// EscapeBlock is Escape for text of several lines: line feeds and tabs are kept.
func EscapeBlock(text string, limit int) string { return escape.Block(text, limit) }

func printable(char rune) bool { return escape.Printable(char) }
