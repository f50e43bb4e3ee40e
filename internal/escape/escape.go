// Package escape makes text that comes from messages fit to be shown: on a terminal, and on the console's pages.
package escape

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Line makes text from a message fit for one line: control characters (and with them ANSI
// sequences), bidirectional overrides, invisible characters and invalid UTF-8 are written as escapes, and
// what exceeds limit bytes of output is cut and marked. Printable text of any script is left as it is.
//
// The result is for reading. A literal \x1b in the text looks like an escaped one.
func Line(text string, limit int) string { return escape(text, limit, false) }

// Block is Line for text of several lines: line feeds and tabs are kept.
func Block(text string, limit int) string { return escape(text, limit, true) }

// cut marks text that goes on.
const cut = "..."

func escape(text string, limit int, block bool) string {
	var out strings.Builder
	for at := 0; at < len(text); {
		char, size := utf8.DecodeRuneInString(text[at:])
		shown := text[at : at+size]
		switch {
		case char == utf8.RuneError && size == 1:
			shown = fmt.Sprintf(`\x%02x`, text[at])
		case block && (char == '\n' || char == '\t'):
		case !Printable(char):
			shown = escapeRune(char)
		}
		if out.Len()+len(shown) > limit {
			return out.String() + cut
		}
		out.WriteString(shown)
		at += size
	}
	return out.String()
}

// Printable leaves out whatever moves the cursor, hides, or reorders: all control and format characters
// except the joiners that some scripts and emoji need, line and paragraph separators, private use.
func Printable(char rune) bool {
	const nonJoiner, joiner = '\u200c', '\u200d'
	return char == nonJoiner || char == joiner || unicode.IsGraphic(char) && !blank(char)
}

// blank are letters and marks that show nothing and can hide text or fake a space.
func blank(char rune) bool {
	switch char {
	case '\u115f', '\u1160', '\u3164', '\uffa0', '\u034f', '\u17b4', '\u17b5', '\u2800':
		return true
	}
	return unicode.Is(unicode.Variation_Selector, char) && char > '\ufe0f'
}

func escapeRune(char rune) string {
	switch char {
	case '\n':
		return `\n`
	case '\r':
		return `\r`
	case '\t':
		return `\t`
	}
	switch {
	case char < 0x80:
		return fmt.Sprintf(`\x%02x`, char)
	case char > 0xffff:
		return fmt.Sprintf(`\U%08x`, char)
	}
	return fmt.Sprintf(`\u%04x`, char)
}
