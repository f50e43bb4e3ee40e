package docs_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpserver"
	"github.com/surefoot-mq/surefoot/resilience/idempotency"
	"github.com/surefoot-mq/surefoot/topology"
)

// descriptions is a registerer that only notes what is registered.
type descriptions struct {
	mu    sync.Mutex
	names map[string]bool
}

var fqName = regexp.MustCompile(`fqName: "([a-z_]+)"`)

// Register implements [prometheus.Registerer].
func (d *descriptions) Register(c prometheus.Collector) error {
	described := make(chan *prometheus.Desc)
	go func() { defer close(described); c.Describe(described) }()
	d.mu.Lock()
	defer d.mu.Unlock()
	for desc := range described {
		d.names[fqName.FindStringSubmatch(desc.String())[1]] = true
	}
	return nil
}

// MustRegister implements [prometheus.Registerer].
func (d *descriptions) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		_ = d.Register(c)
	}
}

// Unregister implements [prometheus.Registerer].
func (d *descriptions) Unregister(prometheus.Collector) bool { return false }

// metricsOfTheCode are the names of all metrics that the packages register: every role is built, and what serves HTTP.
func metricsOfTheCode(t *testing.T) []string {
	t.Helper()
	d := &descriptions{names: map[string]bool{}}
	c := config.Default()
	c.Database.URL, c.AMQP.URL, c.AMQP.ManagementURL = "postgres://ann@127.0.0.1:1/d", "amqp://ann:pw@127.0.0.1:1", "http://127.0.0.1:1"
	c.Topology = topology.Spec{Exchange: "x", Queues: []topology.Queue{{Name: "q", Owner: "o", Target: &topology.Target{Exec: []string{"true"}}}}}
	c.Watchdog.Rules = []config.Rule{{
		Name: "w", Table: "a.b", Key: "k", Status: "s", Stuck: []string{"X"}, Clock: "c", Limit: time.Minute, NewStatus: "Y", Reason: "R", EventType: "e",
	}}
	c.Dependencies = map[string]resilience.Settings{"d": {}}
	c.Reconcile.Rules = []config.ReconcileRule{{
		Name: "r", Table: "a.b", Key: "k", Status: "s", Suspects: []string{"X"}, Clock: "c", Age: time.Minute,
		Authority: config.Authority{HTTP: &config.HTTPAuthority{URL: "http://a/{key}", Dependency: "d"}},
		Answers:   map[string]config.ReconcileAction{"N": {NewStatus: "Y", Reason: "R", EventType: "e"}},
	}}
	pool, err := pg.Open(t.Context(), pg.Options{URL: c.Database.URL.Reveal(), MaxConns: 10})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	for _, role := range app.Roles() {
		if !role.Configured(&c) {
			continue
		}
		_, err := role.New(app.Deps{
			Config: &c, Logger: zerolog.Nop(), Registerer: d, Ready: func(error) {}, Pool: func(string) (*pgxpool.Pool, error) { return pool, nil },
			Schema: c.Database.Schema, AMQPURL: c.AMQP.URL.Reveal(), ManagementURL: c.AMQP.ManagementURL.Reveal(), Host: "h", Version: "v", Drain: time.Second,
		})
		require.NoError(t, err, role.Name)
	}
	_, err = httpserver.New(httpserver.Options{Handler: http.NotFoundHandler(), Listen: "127.0.0.1:0", Metrics: d})
	require.NoError(t, err)
	_, err = idempotency.New(idempotency.Options{
		Pool: pool, Metrics: d, Caller: func(*http.Request) (string, error) { return "c", nil },
	})
	require.NoError(t, err)
	d.MustRegister(telemetry.NewPoolCollector(), app.QueueInfo(c.Topology))
	d.names["surefoot_build_info"] = true
	names := slices.Sorted(maps.Keys(d.names))
	require.Greater(t, len(names), 60)
	return names
}

var (
	anyMetric = regexp.MustCompile(`\b(surefoot_[a-z_]+|circuit_breaker_state|go_[a-z_]+|process_[a-z_]+)\b`)
	series    = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// deployed are the metrics that a file for Prometheus or Grafana names.
func deployed(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../deploy", path))
	require.NoError(t, err)
	names := map[string]bool{}
	for _, name := range anyMetric.FindAllString(string(text), -1) {
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// Every metric that the alerts and the dashboard name is one of the code, and the reverse: the dashboard and docs/telemetry.md have every
// metric that the code has.
func TestAlertsAndDashboardAndCodeNameTheSameMetrics(t *testing.T) {
	t.Parallel()
	code := metricsOfTheCode(t)
	gathered, err := telemetry.NewRegistry("v").Gather()
	require.NoError(t, err)
	known := slices.Clone(code)
	for _, family := range gathered { // of the Go runtime and the process
		known = append(known, family.GetName())
	}
	for _, path := range []string{"prometheus/surefoot.rules.yml", "prometheus/surefoot.rules.test.yml", "grafana/surefoot.json"} {
		for _, name := range deployed(t, path) {
			if !slices.Contains(known, name) {
				require.Contains(t, known, series.ReplaceAllString(name, ""), "deploy/%s names a metric that the code does not have", path)
			}
		}
	}
	board := deployed(t, "grafana/surefoot.json")
	document, err := os.ReadFile("telemetry.md")
	require.NoError(t, err)
	for _, name := range code {
		require.True(t, slices.ContainsFunc(board, func(shown string) bool { return shown == name || series.ReplaceAllString(shown, "") == name }),
			"deploy/grafana/surefoot.json does not show %s", name)
		require.Contains(t, string(document), "`"+name+"`", "docs/telemetry.md lacks a metric")
	}
}

// What the documents call a metric is one.
func TestEveryMetricExists(t *testing.T) {
	t.Parallel()
	code := metricsOfTheCode(t)
	for name, text := range documents(t) {
		for _, found := range anyMetric.FindAllString(text, -1) {
			if strings.HasPrefix(found, "surefoot_demo") || strings.HasPrefix(found, "surefoot_bench") || !strings.HasPrefix(found, "surefoot_") {
				continue // schemas; what the libraries call theirs
			}
			require.Contains(t, code, found, "%s names a metric that the code does not have", name)
		}
	}
}

type alertRule struct {
	Alert, Record, Expr string
	Labels, Annotations map[string]string
}

func alertRules(t *testing.T) (rules []alertRule) {
	t.Helper()
	text, err := os.ReadFile("../deploy/prometheus/surefoot.rules.yml")
	require.NoError(t, err)
	var file struct {
		Groups []struct{ Rules []alertRule }
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			if rule.Alert != "" {
				rules = append(rules, rule)
			}
		}
	}
	require.Greater(t, len(rules), 10)
	return rules
}

// Whoever is woken by an alert finds a runbook that knows it; and each is made to fire by a test.
func TestEveryAlertHasARunbookAndATest(t *testing.T) {
	t.Parallel()
	const base = "https://github.com/surefoot-mq/surefoot/blob/main/docs/"
	tests, err := os.ReadFile("../deploy/prometheus/surefoot.rules.test.yml")
	require.NoError(t, err)
	document, err := os.ReadFile("telemetry.md")
	require.NoError(t, err)
	for _, rule := range alertRules(t) {
		require.Contains(t, []string{"page", "ticket"}, rule.Labels["severity"], rule.Alert)
		require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		path, found := strings.CutPrefix(rule.Annotations["runbook_url"], base)
		require.True(t, found, "%s: runbook_url", rule.Alert)
		runbook, err := os.ReadFile(path)
		require.NoError(t, err, "%s: its runbook", rule.Alert)
		require.Contains(t, string(runbook), "`"+rule.Alert+"`", "%s does not know the alert that leads to it", path)
		require.Contains(t, string(document), "`"+rule.Alert+"`", "docs/telemetry.md lacks an alert")
		require.Regexp(t, `alertname: `+rule.Alert+`\n +exp_alerts:`, string(tests), "no test makes %s fire", rule.Alert)
	}
}

// dashboard is what of Grafana's model the tests look at.
type dashboard struct {
	UID, Title    string
	SchemaVersion int `json:"schemaVersion"`
	Panels        []struct {
		ID          int
		Type, Title string
		GridPos     struct{ H, W, X, Y int }
		Targets     []struct{ Expr, RefID string }
	}
}

// The dashboard is one that Grafana can read, and its expressions ones that Prometheus can.
func TestTheDashboardIsOne(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../deploy/grafana/surefoot.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	require.NotEmpty(t, d.UID)
	require.GreaterOrEqual(t, d.SchemaVersion, 36)
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	ids := map[int]bool{}
	for _, panel := range d.Panels {
		require.False(t, ids[panel.ID], "two panels have the id %d", panel.ID)
		ids[panel.ID] = true
		require.LessOrEqual(t, panel.GridPos.X+panel.GridPos.W, 24, panel.Title)
		require.NotEmpty(t, panel.Title)
		require.True(t, panel.Type == "row" || len(panel.Targets) > 0, panel.Title)
		for _, target := range panel.Targets {
			rules = append(rules, rule{"a:b", strings.NewReplacer("$__rate_interval", "5m", "$queue", "q", "$job", "j").Replace(target.Expr)})
		}
	}
	promtool, err := exec.LookPath("promtool")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("the expressions are checked where promtool is: scripts/alerts install")
	}
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "rules.json") // JSON is YAML
	encoded, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "dashboard", "rules": rules}}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, encoded, 0o600))
	out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "--lint=none", file).CombinedOutput()
	require.NoError(t, err, "%s", out)
}
