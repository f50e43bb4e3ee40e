package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// builds holds the binaries that this test process has built; Main removes them.
var builds buildCache

type buildCache struct {
	mu  sync.Mutex
	dir string
}

// Binary builds cmd/surefoot, once per test process, and returns its path.
func Binary(t testing.TB) string {
	t.Helper()
	return Build(t, "./cmd/surefoot")
}

// Build builds the main package at path, relative to the module's root, once per test process, and returns the
// binary's path.
func Build(t testing.TB, path string) string {
	t.Helper()
	builds.mu.Lock()
	defer builds.mu.Unlock()
	if builds.dir == "" {
		dir, err := os.MkdirTemp("", "surefoot-build-") //nolint:usetesting // outlives the test that is first to build
		require.NoError(t, err)
		builds.dir = dir
	}
	binary := filepath.Join(builds.dir, filepath.FromSlash(path))
	if _, err := os.Stat(binary); err == nil {
		return binary
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, path)
	build.Dir = repository(t)
	out, err := build.CombinedOutput()
	require.NoError(t, err, "go build %s: %s", path, out)
	return binary
}

func (b *buildCache) remove() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}
