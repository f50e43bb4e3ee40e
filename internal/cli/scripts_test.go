package cli_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// eval "$(scripts/stack env)" must not pass over a stack that is not there: what follows would meet other services.
func TestStackEnvWithoutAStackIsAFailure(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "../../scripts/stack", "env")
	cmd.Env = append(os.Environ(), "SUREFOOT_STACK_DIR="+filepath.Join(t.TempDir(), "none"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.Error(t, cmd.Run())
	require.Equal(t, 1, cmd.ProcessState.ExitCode())
	require.Empty(t, stdout.String())
	require.Contains(t, stderr.String(), "run scripts/stack up")
}
