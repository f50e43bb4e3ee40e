package docs_test

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var (
	packageCell = regexp.MustCompile("(?m)^\\| (`[^|]+`) \\|")
	packageName = regexp.MustCompile("`([a-z/]+)`")
)

// place is where architecture.md has a package: its layer, and how far down.
type place struct {
	layer string
	line  int
}

func places(t *testing.T) map[string]place {
	t.Helper()
	text, err := os.ReadFile("architecture.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(text), "\n## Packages\n")
	section, _, _ = strings.Cut(section, "\n## ")
	found := map[string]place{}
	for _, layer := range strings.Split(section, "\n### ")[1:] {
		title, _, _ := strings.Cut(layer, ":")
		for _, cell := range packageCell.FindAllStringSubmatch(layer, -1) {
			for _, name := range packageName.FindAllStringSubmatch(cell[1], -1) {
				require.NotContains(t, found, name[1], "it has one place")
				found[name[1]] = place{title, len(found)}
			}
		}
	}
	return found
}

func TestImportsRunOneWay(t *testing.T) {
	t.Parallel()
	const module = "github.com/surefoot-mq/surefoot/"
	at := places(t)
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "../...").Output()
	require.NoError(t, err)
	there := map[string]bool{}
	var faults []string
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		name := strings.TrimPrefix(fields[0], module)
		there[name] = true
		self, named := at[name]
		if !named {
			faults = append(faults, name+" has no line in architecture.md")
			continue
		}
		for _, imported := range fields[1:] {
			if other, ours := strings.CutPrefix(imported, module); ours {
				if why := forbidden(name, other, self, at[other]); why != "" {
					faults = append(faults, fmt.Sprintf("%s imports %s: %s", name, other, why))
				}
			}
		}
	}
	for name := range at {
		if !there[name] {
			faults = append(faults, name+" is in architecture.md, but there is no such package")
		}
	}
	require.Empty(t, faults)
}

// forbidden says why a package may not import another; empty: it may.
func forbidden(name, other string, self, its place) string {
	shop := strings.HasPrefix(name, "examples/")
	switch {
	case self.line <= its.line:
		return "that stands below it"
	case self.layer == "Leaves":
		return "a leaf imports nothing"
	case self.layer == "Features" && its.layer == "Features":
		return "a feature imports no other"
	case shop && strings.HasPrefix(other, "internal/"):
		return "the shop imports what users can import"
	case strings.HasPrefix(other, "examples/") && !shop && name != "internal/demo" && name != "internal/drill":
		return "only the demonstration and the drills import the shop"
	}
	return ""
}

var sourceFile = regexp.MustCompile("`([a-z/]+\\.go)`")

func TestWhereAChangeGoesIsThere(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("architecture.md")
	require.NoError(t, err)
	files := sourceFile.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, files)
	for _, file := range files {
		require.FileExists(t, "../"+file[1])
	}
}
