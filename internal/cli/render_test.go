package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type item struct {
	ID   int    `json:"id"`
	Text string `json:"text"`
}

func items(all ...item) listing[item] {
	return listing[item]{
		Items: all, Empty: "nothing here",
		Name: func(i item) string { return "n" + strconv.Itoa(i.ID) },
		Columns: []column[item]{
			{"ID", func(i item) string { return strconv.Itoa(i.ID) }},
			{"TEXT", func(i item) string { return i.Text }},
		},
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	two := []item{{1, "a"}, {22, ""}}
	for name, tt := range map[string]struct {
		output         format
		items          []item
		stdout, stderr string
	}{
		"table":       {formatTable, two, "ID  TEXT\n1   a\n22  -\n", ""},
		"json":        {formatJSON, two[:1], "[\n  {\n    \"id\": 1,\n    \"text\": \"a\"\n  }\n]\n", ""},
		"jsonl":       {formatLines, two, "{\"id\":1,\"text\":\"a\"}\n{\"id\":22,\"text\":\"\"}\n", ""},
		"name":        {formatName, two, "n1\nn22\n", ""},
		"empty table": {formatTable, nil, "", "nothing here\n"},
		"empty json":  {formatJSON, nil, "[]\n", ""},
		"empty jsonl": {formatLines, nil, "", ""},
		"empty name":  {formatName, nil, "", ""},
		"hostile cell": {
			formatTable,
			[]item{{1, "\x1b[2J\n\u202e" + strings.Repeat("x", 600)}},
			"ID  TEXT\n1   \\x1b[2J\\n\\u202e" + strings.Repeat("x", maxCell-15) + "...\n", "",
		},
		"hostile json": {formatLines, []item{{1, "<\x1b\u009b\u202e\U000e0041\x7f\u2028注>"}}, `{"id":1,"text":"<\u001b\u009b\u202e\udb40\udc41\u007f\u2028注>"}` + "\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			s := newSession(Env{Stdout: &stdout, Stderr: &stderr})
			s.output = tt.output
			require.NoError(t, render(s, items(tt.items...)))
			require.Equal(t, tt.stdout, stdout.String())
			require.Equal(t, tt.stderr, stderr.String())
		})
	}
}

func TestEscapedJSONMeansTheSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := item{1, rapid.String().Draw(t, "text")}
		var out bytes.Buffer
		require.NoError(t, writeJSON(&out, want, "  "))
		for _, char := range out.String() {
			require.True(t, char == '\n' || printable(char), "%U", char)
		}
		var got item
		require.NoError(t, json.Unmarshal(out.Bytes(), &got))
		require.Equal(t, want, got)
	})
}

// broken is a stdout whose reader has gone.
type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestBrokenOutputIsAnError(t *testing.T) {
	t.Parallel()
	for _, output := range []format{formatTable, formatJSON, formatLines, formatName} {
		s := newSession(Env{Stdout: broken{}, Stderr: broken{}})
		s.output = output
		require.ErrorContains(t, render(s, items(item{1, "a"})), "broken pipe", string(output))
		require.ErrorContains(t, renderOne(s, item{1, "a"}, "n", items().Columns...), "broken pipe", string(output))
	}
}
