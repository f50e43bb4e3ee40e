package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pages are all files of Markdown that belong to the documents, from this directory.
func pages(t *testing.T) map[string]string {
	t.Helper()
	names := []string{"../README.md", "../CONTRIBUTING.md", "../SECURITY.md", "../CHANGELOG.md"}
	require.NoError(t, filepath.WalkDir(".", func(name string, _ fs.DirEntry, err error) error {
		if filepath.Ext(name) == ".md" {
			names = append(names, name)
		}
		return err
	}))
	texts := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		texts[name] = string(text)
	}
	return texts
}

// Every document has its line in docs/README.md, which the README links to.
func TestEveryDocumentIsInTheIndex(t *testing.T) {
	t.Parallel()
	texts := pages(t)
	require.Contains(t, texts["../README.md"], "](docs/README.md)")
	listed := map[string]int{}
	for _, line := range regexp.MustCompile(`(?m)^- \[[^\]]+\]\(([^)]+)\)`).FindAllStringSubmatch(texts["README.md"], -1) {
		listed[line[1]]++
	}
	for name := range texts {
		if !strings.HasPrefix(name, "..") && name != "README.md" {
			require.Equal(t, 1, listed[filepath.ToSlash(name)], "docs/README.md has one line for docs/%s", name)
		}
	}
	require.Equal(t, 1, listed["surefoot.yaml"])
}

// Every link leads to a file that is there, and to a heading that it has.
func TestEveryLinkResolves(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#:]*)(#[^):]+)?\)`)
	heading := regexp.MustCompile(`(?m)^#+ (.*)$`)
	texts, anchored := pages(t), 0
	for name, text := range texts {
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			target := name
			if found[1] != "" {
				target = filepath.Join(filepath.Dir(name), found[1])
			}
			content, err := os.ReadFile(target)
			if info, stat := os.Stat(target); stat == nil && info.IsDir() {
				continue
			}
			require.NoError(t, err, "%s links to %s", name, found[1])
			if found[2] == "" {
				continue
			}
			anchored++
			var slugs []string
			for _, h := range heading.FindAllStringSubmatch(string(content), -1) {
				slugs = append(slugs, "#"+slug(h[1]))
			}
			require.Contains(t, slugs, found[2], "%s links to %s of %s", name, found[2], target)
		}
	}
	require.NotZero(t, anchored)
}

// slug is what a heading is called in links, as GitHub and others make it.
func slug(heading string) string {
	return strings.ReplaceAll(regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}
