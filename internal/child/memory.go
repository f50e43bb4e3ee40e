package child

import (
	"fmt"
	"os"
	"strings"
)

// Memory is a measure of a process's memory.
type Memory string

// The measures. The rusage of a child will not do for the peak: it begins with the size of the process that forked it.
const (
	Resident Memory = "VmRSS" // its size now
	Peak     Memory = "VmHWM" // the largest so far
)

// Of a process, in bytes; 0 when it is unknown: the process has ended, or this is not Linux.
func (m Memory) Of(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, rest, found := strings.Cut(string(text), "\n"+string(m)+":")
	if !found {
		return 0
	}
	var kib int64
	_, _ = fmt.Sscanf(rest, "%d kB", &kib)
	return kib << 10
}
