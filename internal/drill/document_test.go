package drill_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/drill"
)

var update = flag.Bool("update", false, "write the drills into docs/drills.md")

const (
	document = "../../docs/drills.md"
	// generated begins what is made of the drills themselves.
	generated = "<!-- What follows is made of the drills: go test ./internal/drill -run TestTheDocumentHasEveryDrill -update -->\n"
)

// docs/drills.md says of each drill what the code says.
func TestTheDocumentHasEveryDrill(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	before, _, found := strings.Cut(string(text), generated)
	require.True(t, found)
	want := before + generated + catalogue()
	if *update {
		require.NoError(t, os.WriteFile(document, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(text), "run: go test ./internal/drill -run TestTheDocumentHasEveryDrill -update")
}

func catalogue() string {
	var out strings.Builder
	section := ""
	for _, d := range drill.All() {
		if d.Section != section {
			section = d.Section
			fmt.Fprintf(&out, "\n## %s\n", strings.ToUpper(section[:1])+section[1:])
		}
		fmt.Fprintf(&out, "\n### %s\n\nProves that %s.%s\n\n| arm | what is played | expected |\n|---|---|---|\n", d.Name, d.Proves, alone(d))
		for _, arm := range d.Arms {
			fmt.Fprintf(&out, "| %s | %s | %s |\n", arm.Name, arm.Does, expected(d, arm.Name))
		}
		var settings []string
		for _, s := range d.Settings {
			settings = append(settings, fmt.Sprintf("`%s=%s` %s", s.Name, drill.ValueText(s.Default), s.Means))
		}
		fmt.Fprintf(&out, "\nSettings: %s.\n", strings.Join(settings, "; "))
	}
	return out.String()
}

func alone(d drill.Drill) string {
	if d.Alone {
		return " It stops the broker of the local stack, and no other."
	}
	return ""
}

func expected(d drill.Drill, arm string) string {
	var texts []string
	for _, c := range (drill.Played{}).Under(d, arm) {
		texts = append(texts, strings.ReplaceAll(c.Figure, "_", " ")+" "+c.Expected)
	}
	return strings.Join(texts, "; ")
}
