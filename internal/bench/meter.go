package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// tick is the unit of /proc/<pid>/stat: Linux shows hundredths of a second to programs, whatever it counts in.
const tick = 10 * time.Millisecond

const backendSQL = `SELECT pg_backend_pid(), coalesce(inet_client_port(), -1)`

// meter reads the CPU of the services, as far as they run on this machine.
type meter struct {
	postmaster int   // 0: unknown
	brokers    []int // empty: unknown
}

// reading is CPU in microseconds since the services' starts, nil where it is unknown.
type reading struct{ postgres, broker *float64 }

// newMeter finds the services' processes. What it does not find it leaves out.
func newMeter(ctx context.Context, pool *pgxpool.Pool, m *rabbit.Management) (*meter, error) {
	var pid, port int
	if err := pool.QueryRow(ctx, backendSQL).Scan(&pid, &port); err != nil {
		return nil, fmt.Errorf("ask for the backend: %w", err)
	}
	meter := &meter{postmaster: postmasterOf(pid, port)}
	nodes, err := m.Nodes(ctx)
	if err != nil && !errors.Is(err, rabbit.ErrManagementDenied) && !errors.Is(err, rabbit.ErrManagementUnreachable) {
		return nil, err
	}
	for _, node := range nodes {
		if name, _ := os.ReadFile(procFile(node.PID, "comm")); !strings.HasPrefix(string(name), "beam") {
			meter.brokers = nil // not here, or not all of them
			break
		}
		meter.brokers = append(meter.brokers, node.PID)
	}
	return meter, nil
}

// postmasterOf returns the parent of a backend if it is on this machine: its title then names the port of our connection.
func postmasterOf(pid, port int) int {
	title, err := os.ReadFile(procFile(pid, "cmdline"))
	if err != nil || !bytes.HasPrefix(title, []byte("postgres")) {
		return 0
	}
	if port >= 0 && !bytes.Contains(title, fmt.Appendf(nil, "(%d)", port)) {
		return 0
	}
	if stat, ok := readStat(pid); ok {
		return stat.parent
	}
	return 0
}

func procFile(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// stat is what is used of /proc/<pid>/stat.
type stat struct {
	parent      int
	own, reaped time.Duration // CPU of the process, and of children that have ended
}

// readStat returns false when there is no such process.
func readStat(pid int) (stat, bool) {
	text, err := os.ReadFile(procFile(pid, "stat"))
	if err != nil {
		return stat{}, false
	}
	return parseStat(string(text))
}

// parseStat begins after the last parenthesis: the name in front of it may hold anything.
func parseStat(text string) (stat, bool) {
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 15 {
		return stat{}, false
	}
	number := func(field int) int { // as proc(5) counts them; 3 is the state
		n, _ := strconv.Atoi(fields[field-3])
		return n
	}
	ticks := func(a, b int) time.Duration { return time.Duration(number(a)+number(b)) * tick }
	return stat{parent: number(4), own: ticks(14, 15), reaped: ticks(16, 17)}, true
}

func (m *meter) read() reading {
	return reading{postgres: microseconds(m.postgres()), broker: microseconds(m.broker())}
}

func microseconds(d time.Duration, known bool) *float64 {
	if !known {
		return nil
	}
	us := float64(d.Microseconds())
	return &us
}

// postgres sums up the postmaster and its children, those that have ended included. A child that ends meanwhile moves from one sum
// to the other, so the sum counts only when none did.
func (m *meter) postgres() (total time.Duration, known bool) {
	if m.postmaster == 0 {
		return 0, false
	}
	for range 20 {
		before, ok := readStat(m.postmaster)
		if !ok {
			return 0, false
		}
		total = before.own + before.reaped
		for _, pid := range processes() {
			if child, ok := readStat(pid); ok && child.parent == m.postmaster {
				total += child.own
			}
		}
		if after, ok := readStat(m.postmaster); ok && after.reaped == before.reaped {
			break
		}
	}
	return total, true
}

func processes() (pids []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (m *meter) broker() (total time.Duration, known bool) {
	for _, pid := range m.brokers {
		s, ok := readStat(pid)
		if !ok {
			return 0, false
		}
		total += s.own
	}
	return total, len(m.brokers) > 0
}

// since is the CPU between two readings.
func (r reading) since(before reading) reading {
	return reading{difference(r.postgres, before.postgres), difference(r.broker, before.broker)}
}

func difference(after, before *float64) *float64 {
	if after == nil || before == nil {
		return nil
	}
	d := *after - *before
	return &d
}
