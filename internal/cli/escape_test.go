package cli_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/internal/cli"
)

func TestEscape(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ text, want string }{
		"plain":               {"order 7: café, 注文, 🚚", "order 7: café, 注文, 🚚"},
		"quotes and slashes":  {`{"a":"b\c"}`, `{"a":"b\c"}`},
		"joined emoji":        {"👩‍🚒", "👩‍🚒"},
		"line feed and tab":   {"a\nb\tc\rd", `a\nb\tc\rd`},
		"ansi":                {"\x1b[31mred\x1b[0m", `\x1b[31mred\x1b[0m`},
		"terminal title":      {"\x1b]0;owned\x07", `\x1b]0;owned\x07`},
		"c1 sequence":         {"\u009b31m", `\u009b31m`},
		"delete":              {"a\x7f", `a\x7f`},
		"null":                {"a\x00b", `a\x00b`},
		"bidi override":       {"txt.\u202eexe", `txt.\u202eexe`},
		"bidi isolate":        {"\u2066a\u2069", `\u2066a\u2069`},
		"marks of direction":  {"\u200e\u200f\u061c", `\u200e\u200f\u061c`},
		"zero width":          {"a\u200bb\ufeffc\u2060", `a\u200bb\ufeffc\u2060`},
		"separators":          {"a\u2028b\u2029", `a\u2028b\u2029`},
		"invisible letters":   {"a\u3164b\u115f", `a\u3164b\u115f`},
		"tag characters":      {"a\U000e0041", `a\U000e0041`},
		"private use":         {"\ue000", `\ue000`},
		"invalid utf-8":       {"a\xff\xc3", `a\xff\xc3`},
		"overlong":            {"\xc0\xaf", `\xc0\xaf`},
		"surrogate":           {"\xed\xa0\x80", `\xed\xa0\x80`},
		"replacement is text": {"\ufffd", "\ufffd"},
	} {
		require.Equal(t, tt.want, cli.Escape(tt.text, 100), name)
	}
	require.Equal(t, "a\n\tb\\x1b", cli.EscapeBlock("a\n\tb\x1b", 100))
	require.Equal(t, `a\r`+"\n", cli.EscapeBlock("a\r\n", 100), "a carriage return could overwrite the line")
}

func TestEscapeIsBounded(t *testing.T) {
	t.Parallel()
	require.Equal(t, "abc...", cli.Escape("abcdef", 3))
	require.Equal(t, "abc", cli.Escape("abc", 3))
	require.Equal(t, "ab...", cli.Escape("ab注", 4), "a character is never cut in two")
	require.Equal(t, "ab...", cli.Escape("ab\x1b", 4), "an escape is never cut in two")
	require.Len(t, cli.Escape(strings.Repeat("\xff", 1<<20), 4096), 4096+len("..."))
}

func TestEscapedTextIsHarmless(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")) + rapid.String().Draw(t, "text")
		limit := rapid.IntRange(0, 200).Draw(t, "limit")
		got := cli.Escape(text, limit)
		if !utf8.ValidString(got) || len(got) > limit+len("...") {
			t.Fatalf("%q is not bounded UTF-8", got)
		}
		for _, char := range got {
			if unicode.IsControl(char) || unicode.Is(unicode.Bidi_Control, char) {
				t.Fatalf("%q holds %U", got, char)
			}
		}
		if cli.Escape(got, 1000) != got {
			t.Fatalf("%q changes when it is escaped again", got)
		}
	})
}
