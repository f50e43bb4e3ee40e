//go:build crash

package crash_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

var soak = flag.Duration("soak", 20*time.Minute, "how long TestSoak lasts")

// TestSoak works for a long time while one service after the other fails, at random, and then accounts for every message. No process is
// killed, so that their memory can be watched.
func TestSoak(t *testing.T) {
	s := newSoak(t)
	h := s.harness
	h.load.patient = true
	h.patience = afterLostLeader // the last fault may have been the broker's death
	h.load.begin(t.Context(), 2)
	h.flows(t)
	random := rand.New(rand.NewPCG(h.load.seed, 2))
	names := slices.Sorted(maps.Keys(s.faults))
	for end := time.Now().Add(*soak); time.Now().Before(end); {
		random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		for _, name := range names {
			if time.Now().After(end) {
				break
			}
			s.hurt(t, name, random)
		}
	}
	s.report(t)
	h.finish(t)
}

// soaking is a fleet on services of its own, each behind a network that can fail.
type soaking struct {
	*harness
	broker   *testkit.BrokerServer
	server   *testkit.PostgresServer
	networks map[string]*testkit.FaultyNetwork
	faults   map[string]func(testing.TB)
	begun    time.Time
	samples  []sample
	slowest  map[string]time.Duration
}

func newSoak(t *testing.T) *soaking {
	t.Helper()
	s := &soaking{broker: testkit.PrivateBroker(t), slowest: map[string]time.Duration{}}
	disk := os.Geteuid() == 0
	if disk {
		s.server = testkit.SmallPostgres(t, 2<<30)
	} else {
		s.server = testkit.PrivatePostgres(t)
		t.Log("left out, for want of root: the full disk of the database")
	}
	s.networks = map[string]*testkit.FaultyNetwork{"broker": testkit.Proxy(t, s.broker.URL), "database": testkit.Proxy(t, s.server.URL)}
	through := s.broker.AMQP
	through.URL = s.networks["broker"].Through(t, s.broker.URL)
	address := testkit.PostgresServer{URL: s.networks["database"].Through(t, s.server.URL)}
	s.harness = newHarnessOn(t, newSeed(t), address.Database(t), through)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.broker.Describe(t), s.server.Describe(t))
		}
	})
	s.begun = time.Now()
	s.faults = s.allFaults(t)
	if disk {
		s.faults["database's disk full"] = s.fullDisk
	}
	maps.DeleteFunc(s.faults, func(name string, _ func(testing.TB)) bool { return !strings.Contains(name, *only) })
	return s
}

func (s *soaking) allFaults(t *testing.T) map[string]func(testing.TB) {
	t.Helper()
	faults := map[string]func(testing.TB){
		"broker restarted":   s.broker.Restart,
		"broker killed":      func(t testing.TB) { t.Helper(); s.broker.Kill(t); s.broker.Start(t) },
		"database restarted": s.server.Restart,
		"database killed":    func(t testing.TB) { t.Helper(); s.server.Kill(t); s.server.Start(t) },
		"memory alarm":       s.alarm(t, s.broker.MemoryAlarm),
		"disk alarm":         s.alarm(t, s.broker.DiskAlarm),
		"redrive":            func(testing.TB) { s.redrive(t) },
	}
	for name, network := range s.networks {
		lasting := func(begin func(testing.TB), d time.Duration) func(testing.TB) {
			return func(tb testing.TB) { tb.Helper(); begin(tb); pauseFor(t, d); network.Heal(tb) }
		}
		faults[name+" cut off"] = lasting(func(testing.TB) { network.Cut() }, 5*time.Second)
		faults[name+"'s connections reset"] = lasting(network.Reset, 2*time.Second)
		faults[name+" half open"] = lasting(network.HalfOpen, 12*time.Second)
		faults[name+" slow"] = lasting(func(tb testing.TB) { tb.Helper(); network.Latency(tb, 30*time.Millisecond) }, 10*time.Second)
	}
	return faults
}

func (s *soaking) alarm(t *testing.T, set func(testing.TB, bool)) func(testing.TB) {
	t.Helper()
	return func(tb testing.TB) { tb.Helper(); set(tb, true); pauseFor(t, 12*time.Second); set(tb, false) }
}

// fullDisk fills it and asks for another WAL segment, which ends the server; it cannot come back before there is room.
func (s *soaking) fullDisk(t testing.TB) {
	t.Helper()
	s.server.FillDisk(t)
	pool := s.server.Connect(t)
	testkit.Eventually(t, time.Minute, "the full disk to end the server", func() bool {
		_, err := pool.Exec(t.Context(), "SELECT pg_switch_wal()")
		return err != nil
	})
	<-time.After(5 * time.Second)
	s.server.FreeDisk(t)
	s.server.Start(t)
}

func (s *soaking) redrive(t *testing.T) {
	t.Helper()
	out, err := s.command(t, "", s.commandOf("redrive.")...)
	require.NoError(t, err, out)
}

// hurt lets one fault happen, waits until messages flow again, and takes a sample.
func (s *soaking) hurt(t *testing.T, name string, random *rand.Rand) {
	t.Helper()
	testkit.EventuallyNil(t, time.Minute, "rare messages to be written", func() error { return s.feed(t.Context()) })
	pauseFor(t, time.Duration(random.IntN(2000))*time.Millisecond)
	t.Logf("%s after %s", name, time.Since(s.begun).Round(time.Second))
	s.faults[name](t)
	healed := time.Now()
	s.flows(t)
	s.slowest[name] = max(s.slowest[name], time.Since(healed))
	s.discardDead(t)
	s.sample(t)
}

// sample is what must not grow.
type sample struct {
	memory map[string]int // resident, of each process
	tables map[string]int // with their indexes
}

// flatTables hold what is under way; inbox and audit grow with the messages until their retention.
var flatTables = []string{"outbox", "outbox_parked", "outbox_leases", "outbox_members", "outbox_stopped", "dlq_lock"}

func (s *soaking) sample(t *testing.T) {
	t.Helper()
	now := sample{map[string]int{}, map[string]int{}}
	for _, pair := range s.processes {
		for _, p := range pair {
			now.memory[p.name] = p.resident()
		}
	}
	for _, table := range append([]string{"inbox", "audit"}, flatTables...) {
		now.tables[table] = s.count(t.Context(), t, `SELECT pg_total_relation_size('%s.`+table+`')`)
	}
	s.samples = append(s.samples, now)
}

// resident returns the bytes in memory of a running process, 0 where the system does not tell.
func (p *process) resident() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	var kib int
	_, _ = fmt.Sscanf(after, "%d kB", &kib)
	return kib << 10
}

// report prints the figures and requires that the second half is like the first: what a shorter run needs to warm up is allowed for.
func (s *soaking) report(t *testing.T) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(s.slowest)) {
		t.Logf("%-28s messages flow at most %s after its end", name, s.slowest[name].Round(time.Millisecond))
	}
	t.Logf("%d faults in %s, %d transactions of the writers failed", len(s.samples), time.Since(s.begun).Round(time.Second), s.load.failed.Load())
	first, second := s.samples[:len(s.samples)/2], s.samples[len(s.samples)/2:]
	memory := func(of sample) map[string]int { return of.memory }
	tables := func(of sample) map[string]int { return of.tables }
	for _, name := range slices.Sorted(maps.Keys(s.samples[0].memory)) {
		s.flat(t, "memory of "+name, 16<<20, middle(first, memory, name), middle(second, memory, name))
	}
	for _, name := range flatTables {
		s.flat(t, "table "+name, 4<<20, middle(first, tables, name), middle(second, tables, name))
	}
	for _, name := range []string{"inbox", "audit"} {
		t.Logf("%-28s %8.2f MiB, then %8.2f: until its retention it grows with the messages", "table "+name, mib(middle(first, tables, name)), mib(middle(second, tables, name)))
	}
}

func (s *soaking) flat(t *testing.T, what string, slack, first, second int) {
	t.Helper()
	t.Logf("%-28s %8.2f MiB, then %8.2f", what, mib(first), mib(second))
	require.LessOrEqual(t, second, first+first/3+slack, "%s grows", what)
}

func mib(bytes int) float64 { return float64(bytes) / (1 << 20) }

// middle is the median of a half.
func middle(half []sample, of func(sample) map[string]int, name string) int {
	values := make([]int, len(half))
	for i, s := range half {
		values[i] = of(s)[name]
	}
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[len(values)/2]
}
