package guards_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the module's.
const root = "../.."

// Whoever changes a guard's code or its test finds the list here, and the document with it.
func TestEveryGuardStandsWhereTheListSays(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile(filepath.Join(root, "docs/guarantees.md"))
	require.NoError(t, err)
	names := map[string]bool{}
	for _, g := range all {
		require.False(t, names[g.name], "%s is listed twice", g.name)
		names[g.name] = true
		source, err := os.ReadFile(filepath.Join(root, g.file))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(source), g.from), "%s: %q in %s; adapt the list to the code", g.name, g.from, g.file)
		require.NotEqual(t, g.from, g.to)
		require.Equal(t, 1, strings.Count(string(document), g.row()), "docs/guarantees.md lacks a row; all of them:\n%s", rows())
	}
	require.Equal(t, len(all), strings.Count(string(document), "` | `"), "docs/guarantees.md has a guard that the list lacks; all rows:\n%s", rows())
}

// row is the guard in the document's table.
func (g *guard) row() string {
	return fmt.Sprintf("| %s | `%s` | `%s` `%s` |", g.name, g.file, g.pkg, g.test)
}

func rows() string {
	var out strings.Builder
	for i := range all {
		fmt.Fprintln(&out, all[i].row())
	}
	return out.String()
}
