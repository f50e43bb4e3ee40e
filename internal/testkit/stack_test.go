package testkit_test

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// threadsLeft listens, says where, and ends its first thread; another one lives until standard input ends.
const threadsLeft = `
import ctypes, socket, sys, threading
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
threading.Thread(target=sys.stdin.read).start()
ctypes.CDLL(None).pthread_exit(None)
`

// The threads of a process that is killed do not end at once: while one is left the ports are taken, though the process is a zombie
// already. A server that was started again meanwhile took another port.
func TestAProcessOfWhichThreadsAreLeftIsNotGone(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc: scripts/stack asks ps, which tells of no threads")
	}
	program := exec.CommandContext(t.Context(), testkit.Python(t), "-c", threadsLeft)
	input, err := program.StdinPipe()
	require.NoError(t, err)
	output, err := program.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, program.Start())
	defer func() { _ = program.Wait() }()
	defer input.Close()
	port, err := bufio.NewReader(output).ReadString('\n')
	require.NoError(t, err)
	pid := strconv.Itoa(program.Process.Pid)
	testkit.Eventually(t, 10*time.Second, "the first thread to end", func() bool {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		return err == nil && strings.Contains(string(stat), ") Z ")
	})

	conn, err := net.Dial("tcp", "127.0.0.1:"+strings.TrimSpace(port))
	require.NoError(t, err, "its port is taken")
	require.NoError(t, conn.Close())
	require.True(t, alive(t, pid))
	require.NoError(t, input.Close())
	testkit.Eventually(t, 10*time.Second, "the process to be gone, though nobody has waited for it", func() bool { return !alive(t, pid) })
}

// alive asks scripts/stack.
func alive(t *testing.T, pid string) bool {
	t.Helper()
	return exec.CommandContext(t.Context(), "bash", "-euc", `. ../../scripts/lib/stack/state.sh; alive "$1"`, "bash", pid).Run() == nil
}
