//go:build guards

package guards_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each guard is removed alone in a copy of the tree, and its test must fail there. Before that all these tests pass in the
// copy as it is: a red test would say nothing otherwise. Choose one with -run 'Removed/part_of_its_name'.
func TestEveryGuardIsMissedWhenItIsRemoved(t *testing.T) {
	dir := copyOfTheTree(t)
	tests := map[string][]string{}
	for _, g := range all {
		tests[g.pkg] = append(tests[g.pkg], g.test)
	}
	t.Run("none", func(t *testing.T) {
		for pkg, names := range tests {
			out, err := run(t, dir, pkg, names...)
			require.NoError(t, err, "%s", out)
		}
	})
	for _, g := range all {
		t.Run(g.name, func(t *testing.T) {
			file := filepath.Join(dir, g.file)
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			defer func() { require.NoError(t, os.WriteFile(file, source, 0o600)) }()
			require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(source), g.from, g.to, 1)), 0o600))
			out, err := run(t, dir, g.pkg, g.test)
			if strings.Contains(out, "--- SKIP: "+g.test) {
				t.Skip("its test needs something that is not here")
			}
			require.Error(t, err, "%s stays green without it", g.test)
			require.Regexp(t, "(?m)^ *--- FAIL: "+g.test+`\b|^panic: `, out, "it failed for another reason")
		})
	}
}

// run runs tests of a package in the copy. vet is left out: what is taken away may leave something unused, which is not meant.
func run(t *testing.T, dir, pkg string, tests ...string) (out string, err error) {
	t.Helper()
	slices.Sort(tests)
	pattern := "^(" + strings.Join(slices.Compact(tests), "|") + ")$"
	cmd := exec.CommandContext(t.Context(), "go", "test", "-v", "-vet=off", "-count=1", "-timeout=3m", "-run="+pattern, "./"+pkg)
	cmd.Dir = dir
	output, err := cmd.CombinedOutput()
	require.NotRegexp(t, `\[(build|setup) failed\]|no tests to run`, string(output))
	return string(output), err
}

// copyOfTheTree is what git would commit, with what is not committed yet.
func copyOfTheTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = root
	names, err := list.Output()
	require.NoError(t, err)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted and not committed
		}
		require.NoError(t, err)
		info, err := os.Stat(filepath.Join(root, name))
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, info.Mode()))
	}
	return dir
}
