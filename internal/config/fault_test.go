package config_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/config"
)

func TestFaults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		yaml string
		want []string
	}{
		"unknown section, near": {
			"relai:\n  lease: 1s\n",
			[]string{"surefoot.yaml:1: relai: unknown key; did you mean relay?"},
		},
		"unknown key, near": {
			"relay:\n  shards: 4\n  leese: 1s\n",
			[]string{"surefoot.yaml:3: relay.leese: unknown key; did you mean lease?"},
		},
		"unknown key, nothing near": {
			"relay:\n  colour: red\n",
			[]string{"surefoot.yaml:2: relay.colour: unknown key"},
		},
		"unknown key in a list": {
			"watchdog:\n  rules:\n    - {name: a, table: s.t, key: k, status: s, stuck: [x], clock: c, limit: 1m, new_status: y, reason: R, event_type: e, tabel: b}\n",
			[]string{"surefoot.yaml:3: watchdog.rules[0].tabel: unknown key; did you mean table?"},
		},
		"dependency of a target that is not there": {
			"dependencies: {mailer: {}}\ntopology:\n  exchange: x\n  queues:\n    - {name: a, target: {http: {url: http://a/, dependency: mialer}}}\n    - {name: a b, target: {http: {url: http://a/}}}\n",
			[]string{
				`surefoot.yaml:5: topology.queues[0].target.http.dependency: is "mialer", which is not under dependencies; did you mean mailer?`,
				"surefoot.yaml:6: topology.queues[1].target.http.dependency: is missing: the queue's name cannot be that of a dependency, which has 1 to 64 letters, digits, dots, dashes and underscores",
			},
		},
		"every fault of a reconciliation": {
			"dependencies: {orders: {}}\nreconcile:\n  interval: 1ms\n  max_backoff: 1s\n  rules:\n    - {name: a b, keep: [X], answers: {X: {new_status: Y}}, authority: {sql: S, http: {}}}\n" +
				"    - {name: q, table: s.t, key: k, status: s, query: Q, age: 1m, authority: {http: {dependency: oders}}}\n    - {name: q, table: s.t, key: k, status: s, suspects: [Y], clock: c, age: 1m, authority: {sql: S}, answers: {Z: {new_status: Y, reason: R, event_type: e}}}\n",
			[]string{
				"surefoot.yaml:3: reconcile.interval: is 1ms, but must be from 1s to 168h0m0s",
				"surefoot.yaml:4: reconcile.max_backoff: is 1s, but must be from 1m0s to 168h0m0s",
				"surefoot.yaml:6: reconcile.rules[0].table: is missing",
				"surefoot.yaml:6: reconcile.rules[0].key: is missing",
				"surefoot.yaml:6: reconcile.rules[0].status: is missing",
				`surefoot.yaml:6: reconcile.rules[0].name: is "a b", but must be 1 to 64 letters, digits, dots, dashes and underscores`,
				"surefoot.yaml:6: reconcile.rules[0].clock: is missing",
				"surefoot.yaml:6: reconcile.rules[0].suspects: must list at least one status, or there must be a query",
				"surefoot.yaml:6: reconcile.rules[0].age: must be a duration above zero, such as 20m",
				"surefoot.yaml:6: reconcile.rules[0].authority: must have one of sql and http",
				"surefoot.yaml:6: reconcile.rules[0].answers[X].reason: is missing",
				"surefoot.yaml:6: reconcile.rules[0].answers[X].event_type: is missing",
				"surefoot.yaml:6: reconcile.rules[0].answers[X]: is also in keep: the same answer cannot show a row to be right and wrong",
				"surefoot.yaml:7: reconcile.rules[1].age: does not go with query, which says what it would",
				"surefoot.yaml:7: reconcile.rules[1].authority.http.url: is missing",
				`surefoot.yaml:7: reconcile.rules[1].authority.http.dependency: is "oders", which is not under dependencies; did you mean orders?`,
				"surefoot.yaml:7: reconcile.rules[1].answers: must have at least one answer that shows a row to be wrong",
				"surefoot.yaml:8: reconcile.rules[2].answers[Z].new_status: is one of the suspect statuses: the row would stay suspect",
				"surefoot.yaml:8: reconcile.rules[2].name: is also the name of reconcile.rules[1]",
			},
		},
		"duration without a unit": {
			"relay: {lease: 10}\n",
			[]string{"surefoot.yaml:1: relay.lease: must be a duration with its unit, such as 200ms, 10s, 5m or 168h"},
		},
		"duration of nonsense": {
			"relay: {lease: soon}\n",
			[]string{"surefoot.yaml:1: relay.lease: must be a duration with its unit, such as 200ms, 10s, 5m or 168h"},
		},
		"size of nonsense": {
			"relay: {window_bytes: 16MB}\n",
			[]string{"surefoot.yaml:1: relay.window_bytes: is not a size: write bytes as 16MiB, 512KiB, 1GiB or a number"},
		},
		"number is text": {
			"relay: {shards: eight}\n",
			[]string{"surefoot.yaml:1: relay.shards: must be a whole number"},
		},
		"fraction for a whole number": {
			"relay: {shards: 1.5}\n",
			[]string{"surefoot.yaml:1: relay.shards: must be a whole number"},
		},
		"text is a number": {
			"database: {schema: 5}\n",
			[]string{"surefoot.yaml:1: database.schema: must be text: put it into quotes"},
		},
		"section is a value": {
			"relay: 5\n",
			[]string{"surefoot.yaml:1: relay: must be a mapping of keys to values"},
		},
		"value is a section": {
			"log: {level: {a: b}}\n",
			[]string{"surefoot.yaml:1: log.level: must be a single value"},
		},
		"list is a value": {
			"watchdog: {rules: none}\n",
			[]string{"surefoot.yaml:1: watchdog.rules: must be a list"},
		},
		"the file is a list": {
			"- relay\n",
			[]string{"surefoot.yaml:1: must be a mapping of keys to values"},
		},
		"key twice": {
			"relay:\n  shards: 4\n  lease: 5s\n  shards: 8\n",
			[]string{"surefoot.yaml:4: relay.shards: is set twice, first at surefoot.yaml:2"},
		},
		"out of range": {
			"relay:\n  shards: 0\n",
			[]string{"surefoot.yaml:2: relay.shards: is 0, but must be from 1 to 256"},
		},
		"duration out of range": {
			"relay:\n  lease: -1s\n",
			[]string{"surefoot.yaml:2: relay.lease: is -1s, but must be from 1s to 10m0s"},
		},
		"poll_max below poll_min": {
			"relay: {poll_min: 1s}\n",
			[]string{"surefoot.yaml:1: relay.poll_max: is 100ms, but must be from 1s to 1m0s"},
		},
		"one fault for a value that cannot be read": {
			"relay: {poll_min: 1s, poll_max: x}\n",
			[]string{"surefoot.yaml:1: relay.poll_max: must be a duration with its unit, such as 200ms, 10s, 5m or 168h"},
		},
		"no such choice": {
			"relay: {on_poison: strickt}\n",
			[]string{`surefoot.yaml:1: relay.on_poison: is "strickt", but must be one of strict, skip; did you mean strict?`},
		},
		"hostile text is quoted": {
			"log: {level: \"\\e[31mred\"}\n",
			[]string{`surefoot.yaml:1: log.level: is "\x1b[31mred", but must be one of trace, debug, info, warn, error`},
		},
		"anchors": {
			"relay: &a {shards: 4}\nwatchdog: *a\n",
			[]string{
				"surefoot.yaml:1: relay: anchors and aliases are not supported: write the value out",
				"surefoot.yaml:2: watchdog: anchors and aliases are not supported: write the value out",
			},
		},
		"several documents": {
			"relay: {shards: 4}\n---\nrelay: {shards: 5}\n",
			[]string{"surefoot.yaml: holds several documents: put everything into one"},
		},
		"two rules of one name": {
			"watchdog:\n  rules:\n" +
				"    - {name: a, table: s.t, key: k, status: s, stuck: [x], clock: c, limit: 1m, new_status: y, reason: R, event_type: e}\n" +
				"    - {name: a, table: s.t, key: k, status: s, stuck: [x], clock: c, limit: 1m, new_status: x, reason: R, event_type: e}\n",
			[]string{
				"surefoot.yaml:4: watchdog.rules[1].new_status: is one of the stuck statuses: the row would stay stuck",
				"surefoot.yaml:4: watchdog.rules[1].name: is also the name of watchdog.rules[0]",
			},
		},
		"no port": {
			"http: {listen: localhost}\n",
			[]string{`surefoot.yaml:1: http.listen: is "localhost", but must be host:port or :port; port 0 takes any free one`},
		},
		"a certificate without its key": {
			"http:\n  cert_file: /etc/tls/probes.pem\n",
			[]string{"surefoot.yaml:2: http.cert_file: needs http.key_file, and the reverse"},
		},
		"schema that needs quotes": {
			"database: {schema: Sure-Foot}\n",
			[]string{`surefoot.yaml:1: database.schema: is "Sure-Foot", but must be 1 to 40 lower-case letters, digits and underscores, not starting with a digit`},
		},
		"every fault at once": {
			"relai: {}\nrelay:\n  lease: 10\n  shards: 0\nlog: {level: loud}\nhttp: {listen: nowhere}\n",
			[]string{
				"surefoot.yaml:1: relai: unknown key; did you mean relay?",
				"surefoot.yaml:3: relay.lease: must be a duration with its unit, such as 200ms, 10s, 5m or 168h",
				`surefoot.yaml:6: http.listen: is "nowhere", but must be host:port or :port; port 0 takes any free one`,
				`surefoot.yaml:5: log.level: is "loud", but must be one of trace, debug, info, warn, error`,
				"surefoot.yaml:4: relay.shards: is 0, but must be from 1 to 256",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := load(tt.yaml)
			requireFaults(t, err, tt.want...)
		})
	}
}

func TestSyntaxFaultNamesTheLine(t *testing.T) {
	t.Parallel()
	_, err := load("relay:\n  lease: \"10s\n")
	require.ErrorContains(t, err, "surefoot.yaml:2: is not valid YAML: ")
}

func TestFaultsOfAllSourcesComeTogether(t *testing.T) {
	t.Parallel()
	_, err := config.Load(config.Sources{
		ReadFile: files{config.DefaultFile: "relay: {lease: 10}"}.read,
		Environ:  []string{"SUREFOOT_RELAY_SHARDS=many"},
		Flags:    []config.Flag{{Name: "--log-level", Key: "log.level", Text: "loud"}},
		Database: true, AMQP: true,
	})
	requireFaults(
		t, err,
		"surefoot.yaml:1: relay.lease: must be a duration with its unit, such as 200ms, 10s, 5m or 168h",
		"SUREFOOT_RELAY_SHARDS: relay.shards: must be a whole number",
		"database.url: is missing: set SUREFOOT_DATABASE_URL, for example to postgres://user:password@host:5432/database",
		"amqp.url: is missing: set SUREFOOT_AMQP_URL, for example to amqp://user:password@host:5672/vhost",
		`--log-level: log.level: is "loud", but must be one of trace, debug, info, warn, error`,
	)
	require.ErrorContains(t, err, "the configuration has 5 faults:\n  surefoot.yaml:1: relay.lease")
}

func TestMisspeltVariables(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		variable string
		want     []string
	}{
		"near miss":                {"SUREFOOT_RELAY_LEESE", []string{"SUREFOOT_RELAY_LEESE: unknown variable; did you mean SUREFOOT_RELAY_LEASE?"}},
		"near miss elsewhere":      {"SUREFOOT_OPERATR", []string{"SUREFOOT_OPERATR: unknown variable; did you mean SUREFOOT_OPERATOR?"}},
		"somebody else's":          {"SUREFOOT_WRAPPER_THEME", nil},
		"another prefix":           {"SUREFOO_RELAY_LEASE", nil},
		"read elsewhere":           {"SUREFOOT_OPERATOR", nil},
		"kubernetes service":       {"SUREFOOT_PORT_9464_TCP_ADDR", nil},
		"kubernetes service again": {"SUREFOOT_RELAY_SERVICE_HOST", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Load(config.Sources{ReadFile: files{}.read, Environ: []string{tt.variable + "=x"}})
			if tt.want == nil {
				require.NoError(t, err)
				return
			}
			requireFaults(t, err, tt.want...)
		})
	}
}

func TestNamedFileMustExist(t *testing.T) {
	t.Parallel()
	_, err := config.Load(config.Sources{ReadFile: files{}.read, Path: "other.yaml"})
	requireFaults(t, err, "--config: cannot read the configuration: open other.yaml: file does not exist; `surefoot init --output FILE` writes one to begin with")
	_, err = config.Load(config.Sources{ReadFile: files{}.read, Environ: []string{"SUREFOOT_CONFIG=third.yaml"}})
	requireFaults(t, err, "SUREFOOT_CONFIG: cannot read the configuration: open third.yaml: file does not exist; `surefoot init --output FILE` writes one to begin with")
	got, err := config.Load(config.Sources{
		ReadFile: files{"other.yaml": "relay: {shards: 3}", "third.yaml": "relay: {shards: 4}"}.read,
		Path:     "other.yaml", Environ: []string{"SUREFOOT_CONFIG=third.yaml"},
	})
	require.NoError(t, err)
	require.Equal(t, 3, got.Relay.Shards)
}

func TestHugeFileIsRefused(t *testing.T) {
	t.Parallel()
	_, err := load(strings.Repeat("#", 1<<20+1))
	requireFaults(t, err, "surefoot.yaml: is larger than 1MiB: not a configuration")
}

func TestEmptySectionsKeepTheirDefaults(t *testing.T) {
	t.Parallel()
	got, err := load("relay:\n  # lease: 5s\nlog:\n  level:\n")
	require.NoError(t, err)
	require.Equal(t, config.Default().Relay, got.Relay)
	require.Equal(t, "info", got.Log.Level)
}
