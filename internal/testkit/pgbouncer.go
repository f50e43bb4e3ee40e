package testkit

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// directVar is the way past the pooler that scripts/pgbouncer has put before the database.
const directVar = "DIRECT_DATABASE_URL"

// PgBouncer starts a PgBouncer in transaction mode before the database of a URL, and returns the URL through it. It
// ends with the test, and also with the process. Where it is not installed the test is skipped.
func PgBouncer(t testing.TB, upstream string) string {
	t.Helper()
	return PgBouncerIn(t, "transaction", upstream)
}

// PgBouncerIn is [PgBouncer] in another pool mode: session, transaction or statement.
func PgBouncerIn(t testing.TB, mode, upstream string) string {
	t.Helper()
	if !hasPgBouncer() {
		t.Skip("PgBouncer is not installed: run `make test-pgbouncer`, or `scripts/pgbouncer install`")
	}
	// The pooler lives as long as the command behind it, which ends with our end of the pipe.
	command := exec.CommandContext(context.WithoutCancel(t.Context()), filepath.Join(repository(t), "scripts", "pgbouncer"), "with", "sh", "-c", `echo "$SUREFOOT_DATABASE_URL"; exec cat`)
	command.Env = append(os.Environ(), "SUREFOOT_"+databaseVar+"="+upstream, "SUREFOOT_PGBOUNCER_MODE="+mode)
	var failure strings.Builder
	command.Stderr = &failure
	command.WaitDelay = time.Second
	in, err := command.StdinPipe()
	require.NoError(t, err)
	out, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	t.Cleanup(func() {
		_ = in.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("scripts/pgbouncer: %v: %s", err, failure.String())
		}
	})
	u, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err, "scripts/pgbouncer does not start")
	return strings.TrimSpace(u)
}

func hasPgBouncer() bool {
	if _, err := exec.LookPath("pgbouncer"); err == nil {
		return true
	}
	_, err := os.Stat("/usr/sbin/pgbouncer") // not in everybody's path
	return err == nil
}
