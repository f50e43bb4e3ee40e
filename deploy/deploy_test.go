// Package deploy_test holds the files of deploy/ to the code, and tries the rights that they give against a real broker and a real database.
package deploy_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

var update = flag.Bool("update", false, "write the exported files anew")

func TestMain(m *testing.M) { testkit.Main(m) }

// output of one command of the binary.
type output struct {
	code           int
	stdout, stderr string
}

// surefoot runs the binary at the repository's root with nothing of this process's environment but the PATH.
func surefoot(t *testing.T, environ []string, args ...string) output {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the binary")
	}
	cmd := exec.CommandContext(t.Context(), testkit.Binary(t), args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "..", append([]string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}, environ...), &stdout, &stderr
	_ = cmd.Run() // the code says it
	return output{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

// The exported files are what the binary writes of the shop's configuration.
func TestExportedFilesAreFresh(t *testing.T) {
	t.Parallel()
	for file, args := range map[string]string{
		"rabbitmq/definitions.json": "topology export --users",
		"rabbitmq/operator.json":    "topology export --format operator",
	} {
		got := surefoot(t, []string{"SUREFOOT_CONFIG=examples/shop/surefoot.yaml"}, strings.Fields(args)...)
		require.Zero(t, got.code, got.stderr)
		if *update {
			require.NoError(t, os.WriteFile(filepath.FromSlash(file), []byte(got.stdout), 0o644))
		}
		require.Equal(t, read(t, file), got.stdout, "run `go test ./deploy -update`")
	}
}
