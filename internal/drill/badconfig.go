package drill

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

func badConfig() Drill {
	return Drill{
		Name: "bad-config", Section: SectionSaga,
		Proves: "a process whose configuration is wrong ends at once, before any work, and names every fault",
		Settings: []Setting{
			length("limit", 3*time.Second, 500*time.Millisecond, 30*time.Second, "longest time to the end"),
		},
		Arms: []Arm{
			{Name: "valid", Does: "the same commands with a configuration that is right: they run", play: func(ctx context.Context, s *stage) error { return configured(ctx, s, false) }},
			{Name: After, Does: "missing and invalid settings", play: func(ctx context.Context, s *stage) error { return configured(ctx, s, true) }},
		},
		checks: func(s Settings) []Check {
			return append(
				expect("valid", "ended_by_themselves", 0, "stopped_with_0", len(configCases)),
				expect(After, "ended_by_themselves", len(configCases), "exit_codes", []int{2, 2, 2}, "slowest", atMost(s.Duration("limit")),
					"faults_named", faultsPlanted(), "passwords_shown", 0)...)
		},
	}
}

// configCase is a command with what is wrong with its configuration.
type configCase struct {
	args  []string
	yaml  string   // of surefoot.yaml; "" leaves the URLs out
	names []string // what must be named
}

// configSecret is in the URLs, and must not be shown.
const configSecret = "hunter2"

var configCases = []configCase{
	{[]string{"relay", "run"}, "", []string{"database.url", "amqp.url"}},
	{[]string{"run"}, `
database: {url: "postgres://ann:` + configSecret + `@127.0.0.1:1/shop", schema: "Not A Schema"}
amqp: {url: "http://ann:` + configSecret + `@127.0.0.1:1/"}
relay: {lease: 10 minutes, window: -1, on_poison: ignore}
topology: {exchange: drill.events, queues: [{name: "", retry: [0s]}]}
surprise: 1
`, []string{"database.schema", "amqp.url", "relay.lease", "relay.window", "relay.on_poison", "queues[0]", "surprise"}},
	{[]string{"watchdog", "run"}, `
database: {url: "postgres://ann:` + configSecret + `@127.0.0.1:1/shop"}
amqp: {url: "amqp://ann:` + configSecret + `@127.0.0.1:1/"}
watchdog: {interval: -1s, rules: [{name: x, table: orders, limit: 0s}]}
`, []string{"watchdog.interval", "limit", "status"}},
}

func faultsPlanted() (n int) {
	for _, c := range configCases {
		n += len(c.names)
	}
	return n
}

// validConfig lets every role of the cases run.
const validConfig = `
topology: {exchange: drill.events, queues: [{name: drill.work, bindings: ["drill.#"], target: {exec: ["true"]}}]}
watchdog: {rules: [{name: x, table: "@schema@.drill_orders", key: id, status: status, stuck: [NEW], clock: at, limit: 1h, new_status: OLD, reason: x, event_type: drill.x}]}
`

const configTable pg.SQL = `CREATE TABLE @schema@.drill_orders (id text PRIMARY KEY, status text NOT NULL, at timestamptz NOT NULL)`

// configured runs each command and waits for its end, or ends it.
func configured(ctx context.Context, s *stage, wrong bool) error {
	if err := s.prepare(ctx, work("drill.work", 3, time.Second)); err != nil {
		return err
	}
	if err := s.exec(ctx, configTable); err != nil {
		return err
	}
	var codes []int
	ended, stopped, named, shown, slowest := 0, 0, 0, 0, time.Duration(0)
	for _, c := range configCases {
		dir, err := s.directory()
		if err != nil {
			return err
		}
		yaml, env := c.yaml, bareEnviron(s.environ(s.url))
		if !wrong {
			yaml, env = strings.ReplaceAll(validConfig, "@schema@", s.schema), s.environ(s.url)
		}
		if err := os.WriteFile(filepath.Join(dir, "surefoot.yaml"), []byte(yaml), 0o600); err != nil {
			return err
		}
		began := time.Now()
		p, err := s.start(ctx, launch{args: c.args, env: env, dir: dir})
		if err != nil {
			return err
		}
		patience := s.set.Duration("limit")
		if !wrong {
			patience = min(patience, time.Second) // it is to run on
		}
		code, err := p.wait(ctx, patience)
		if err != nil {
			p.signal(syscall.SIGTERM)
			if code, err = p.wait(ctx, 30*time.Second); err == nil && code == 0 {
				stopped++
			}
			continue
		}
		ended++
		codes = append(codes, code)
		slowest = max(slowest, time.Since(began))
		for _, name := range c.names {
			if strings.Contains(p.out.String(), name) {
				named++
			}
		}
		shown += strings.Count(p.out.String(), configSecret)
	}
	s.observe("commands", len(configCases))
	s.observe("ended_by_themselves", ended)
	s.observe("stopped_with_0", stopped)
	s.observe("exit_codes", codes)
	s.observe("slowest", slowest)
	s.observe("faults_planted", faultsPlanted())
	s.observe("faults_named", named)
	s.observe("passwords_shown", shown)
	return nil
}

// bareEnviron leaves out what would configure the process.
func bareEnviron(env []string) (bare []string) {
	for _, entry := range env {
		if !strings.HasPrefix(entry, "SUREFOOT_") {
			bare = append(bare, entry)
		}
	}
	return bare
}
