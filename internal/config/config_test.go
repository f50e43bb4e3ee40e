package config_test

import (
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// files is a file system of a test's own.
type files map[string]string

func (f files) read(path string) ([]byte, error) {
	text, ok := f[path]
	if !ok {
		return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	return []byte(text), nil
}

// load reads one file and nothing else.
func load(yaml string) (*config.Config, error) {
	return config.Load(config.Sources{ReadFile: files{config.DefaultFile: yaml}.read})
}

func requireFaults(t *testing.T, err error, want ...string) {
	t.Helper()
	var faults config.FaultsError
	require.ErrorAs(t, err, &faults)
	var got []string
	for _, fault := range faults {
		got = append(got, fault.String())
	}
	require.Equal(t, want, got)
}

func TestNothingSetIsTheDefault(t *testing.T) {
	t.Parallel()
	got, err := config.Load(config.Sources{ReadFile: files{}.read})
	require.NoError(t, err)
	want := config.Default()
	require.Equal(t, &want, got)
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	const file, env, flag = 2 * time.Second, 3 * time.Second, 4 * time.Second
	for name, tt := range map[string]struct {
		file, env, flag bool
		want            time.Duration
	}{
		"default":                     {want: 10 * time.Second},
		"file over default":           {file: true, want: file},
		"environment over default":    {env: true, want: env},
		"flag over default":           {flag: true, want: flag},
		"environment over file":       {file: true, env: true, want: env},
		"flag over file":              {file: true, flag: true, want: flag},
		"flag over environment":       {env: true, flag: true, want: flag},
		"flag over all the other two": {file: true, env: true, flag: true, want: flag},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := config.Sources{ReadFile: files{}.read}
			if tt.file {
				src.ReadFile = files{config.DefaultFile: "relay: {lease: 2s}"}.read
			}
			if tt.env {
				src.Environ = []string{"SUREFOOT_RELAY_LEASE=3s"}
			}
			if tt.flag {
				src.Flags = []config.Flag{{Name: "--lease", Key: "relay.lease", Text: "4s"}}
			}
			got, err := config.Load(src)
			require.NoError(t, err)
			require.Equal(t, tt.want, got.Relay.Lease)
		})
	}
}

func TestEveryKeyIsDocumentedWithItsDefault(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/surefoot.yaml")
	require.NoError(t, err)
	got, err := load(string(text))
	require.NoError(t, err)

	var documented any
	require.NoError(t, yaml.Unmarshal(text, &documented))
	for _, key := range keys(reflect.TypeFor[config.Config](), "") {
		if strings.HasSuffix(key, "url_file") { // excludes the url that the file shows
			require.Contains(t, string(text), "\n  # "+key[strings.Index(key, ".")+1:]+": ")
			continue
		}
		require.True(t, contains(documented, strings.Split(key, ".")), "%s is not in docs/surefoot.yaml", key)
	}
	got.Database.URL, got.AMQP.URL, got.AMQP.ManagementURL = "", "", ""
	got.Database.Source, got.AMQP.Source, got.AMQP.ManagementSource = "", "", ""
	got.Watchdog.Rules, got.Reconcile.Rules, got.Topology = nil, nil, topology.Spec{}
	got.Dependencies = nil
	want := config.Default()
	require.Equal(t, &want, got, "the file documents a default that is not the default")
}

// contains tells whether a path of keys leads to something; [] is any element of a list, {} any one of a map.
func contains(node any, path []string) bool {
	if len(path) == 0 {
		return true
	}
	section, _ := node.(map[string]any)
	name, isList := strings.CutSuffix(path[0], "[]")
	name, isMap := strings.CutSuffix(name, "{}")
	next, ok := section[name]
	if elements, _ := next.(map[string]any); isMap {
		return slices.ContainsFunc(slices.Collect(maps.Values(elements)), func(element any) bool { return contains(element, path[1:]) })
	}
	if list, _ := next.([]any); isList {
		return slices.ContainsFunc(list, func(element any) bool { return contains(element, path[1:]) })
	}
	return ok && contains(next, path[1:])
}

// keys are the paths of all keys below a type, those in lists and maps included.
func keys(of reflect.Type, path string) []string {
	var found []string
	for field := range of.Fields() {
		name := field.Tag.Get("yaml")
		if name == "" || name == "-" {
			continue
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		found = append(found, at)
		inner := field.Type
		if inner.Kind() == reflect.Slice {
			inner, at = inner.Elem(), at+"[]"
		}
		if inner.Kind() == reflect.Map {
			inner, at = inner.Elem(), at+"{}"
		}
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct {
			found = append(found, keys(inner, at)...)
		}
	}
	return found
}

func TestEveryDocumentedListArrives(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/surefoot.yaml")
	require.NoError(t, err)
	got, err := load(string(text))
	require.NoError(t, err)
	require.Len(t, got.Watchdog.Rules, 1)
	require.Len(t, got.Topology.Queues, 2)
	for _, element := range []reflect.Value{reflect.ValueOf(got.Watchdog.Rules[0]), reflect.ValueOf(got.Topology.Queues[0])} {
		for i := range element.NumField() {
			require.False(t, element.Field(i).IsZero(), "%s did not arrive", element.Type().Field(i).Name)
		}
	}
	require.Equal(t, map[string]string{"customer": "customer_id"}, got.Watchdog.Rules[0].Payload)
	payments := got.Dependencies["payments"]
	require.Equal(t, payments, payments.WithDefaults(), "the documented dependency leaves something out")
	require.NoError(t, payments.Validate())
	require.Empty(t, payments.Warnings())
	require.Equal(t, &topology.Target{Exec: []string{"/usr/local/bin/saga", "--once"}, KeepAlive: true}, got.Topology.Queues[0].Target)
	endpoint := reflect.ValueOf(*got.Topology.Queues[1].Target.HTTP)
	for i := range endpoint.NumField() {
		require.False(t, endpoint.Field(i).IsZero(), "%s did not arrive", endpoint.Type().Field(i).Name)
	}
}

func TestEveryLeafHasAVariableOfItsOwn(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for key, name := range config.Variables() {
		require.Regexp(t, `^SUREFOOT_[A-Z0-9_]+$`, name)
		require.Empty(t, seen[name], "%s and %s share %s", key, seen[name], name)
		seen[name] = key
	}
	for name, key := range map[string]string{
		"SUREFOOT_DATABASE_URL":      "database.url",
		"SUREFOOT_DATABASE_URL_FILE": "database.url_file",
		"SUREFOOT_AMQP_URL":          "amqp.url",
		"SUREFOOT_AMQP_URL_FILE":     "amqp.url_file",
		"SUREFOOT_MANAGEMENT_URL":    "amqp.management_url",
		"SUREFOOT_SCHEMA":            "database.schema",
		"SUREFOOT_HTTP_LISTEN":       "http.listen",
	} {
		require.Equal(t, key, seen[name])
	}
}

func TestExchangesAreThoseOfAllThatWritesRows(t *testing.T) {
	t.Parallel()
	c := config.Config{}
	require.Empty(t, c.Exchanges())
	c.Topology = topology.Spec{Exchange: "events", Queues: []topology.Queue{{Name: "q"}, {Name: "r", Exchange: "other"}}}
	c.Relay.Exchange = "events"
	c.Watchdog.Rules = []config.Rule{{Exchange: "late"}, {}}
	c.Reconcile.Rules = []config.ReconcileRule{{Answers: map[string]config.ReconcileAction{"A": {Exchange: "wrong"}, "B": {}}}}
	require.Equal(t, []string{"events", "late", "other", "wrong"}, c.Exchanges())
}
