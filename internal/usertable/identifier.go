package usertable

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

const maxIdentifier = 63 // PostgreSQL would cut a longer name and then mean another one

// ParseName reads schema.table, each plain or in double quotes with inner ones doubled. Its error continues a sentence about the name.
func ParseName(text string) (pgx.Identifier, error) {
	var parts pgx.Identifier
	for rest := text; ; {
		part, after, err := cutIdentifier(rest)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
		if after == "" {
			break
		}
		rest = after[1:]
	}
	if len(parts) != 2 {
		return nil, errors.New("must be written with its schema, as schema.table")
	}
	for _, part := range parts {
		if fault := IdentifierFault(part); fault != "" {
			return nil, fmt.Errorf("has a part that %s", fault)
		}
	}
	return parts, nil
}

// cutIdentifier takes one identifier off the front; what is left is empty or starts with the dot.
func cutIdentifier(text string) (part, rest string, err error) {
	if !strings.HasPrefix(text, `"`) {
		end := strings.IndexByte(text, '.')
		if end < 0 {
			end = len(text)
		}
		return text[:end], text[end:], nil
	}
	var name strings.Builder
	for i := 1; i < len(text); i++ {
		switch {
		case text[i] != '"':
			name.WriteByte(text[i])
		case strings.HasPrefix(text[i+1:], `"`):
			name.WriteByte('"')
			i++
		case i+1 == len(text) || text[i+1] == '.':
			return name.String(), text[i+1:], nil
		default:
			return "", "", errors.New(`has text between a closing quote and the dot`)
		}
	}
	return "", "", errors.New("has a quote that is not closed")
}

// IdentifierFault says why a name cannot be one in PostgreSQL, or "".
func IdentifierFault(name string) string {
	if len(name) > maxIdentifier {
		return fmt.Sprintf("has %d bytes, more than PostgreSQL's limit of %d", len(name), maxIdentifier)
	}
	return TextFault(name, maxIdentifier)
}

// TextFault says why a text of at most so many bytes cannot be stored, or "".
func TextFault(text string, most int) string {
	switch {
	case text == "":
		return "is empty"
	case len(text) > most:
		return fmt.Sprintf("has %d bytes, more than the limit of %d", len(text), most)
	case !utf8.ValidString(text) || strings.ContainsRune(text, 0):
		return "is not valid UTF-8 or has a NUL byte"
	}
	return ""
}
