package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each threat has something that protects from it and a test that shows it. A package's name holds for the tests after it.
func TestEveryThreatHasATestThatExists(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("security.md")
	require.NoError(t, err)
	name, tests, threats := regexp.MustCompile("`([A-Za-z0-9/]+)`"), map[string][]string{}, 0
	inTable := false
	for line := range strings.SplitSeq(string(text), "\n") {
		switch {
		case line == "| threat | what protects | tests |":
			inTable = true
			continue
		case !strings.HasPrefix(line, "|"):
			inTable = false
		}
		if !inTable || strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		require.Len(t, cells, 3, "%s", line)
		pkg, named := "", 0
		for _, found := range name.FindAllStringSubmatch(cells[2], -1) {
			if !strings.HasPrefix(found[1], "Test") {
				pkg = found[1]
				continue
			}
			if tests[pkg] == nil {
				tests[pkg] = testsOf(t, pkg)
			}
			require.Contains(t, tests[pkg], found[1], "docs/security.md names a test that package %s does not have", pkg)
			named++
		}
		require.Positive(t, named, "docs/security.md names no test for: %s", cells[0])
		threats++
	}
	require.Greater(t, threats, 25)
}
