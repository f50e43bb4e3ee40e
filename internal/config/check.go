package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/topology"
)

// check looks at every section. Sections follow the order of the file.
func (c *Config) check(r *reader) {
	c.Database.check(r)
	c.AMQP.check(r)
	c.HTTP.check(r)
	c.Log.check(r)
	c.Tracing.check(r)
	c.Relay.check(r)
	checkTopology(r, c.Topology)
	checkTargets(r, c.Topology, c.Dependencies)
	within(r, "inbox.retention", c.Inbox.Retention, time.Minute, 10*365*24*time.Hour)
	c.Watchdog.check(r)
	c.Reconcile.check(r, c.Dependencies)
	checkDependencies(r, c.Dependencies)
	c.Console.check(r)
	within(r, "shutdown.timeout", c.Shutdown.Timeout, time.Second, 10*time.Minute)
}

// checkDependencies lets the settings find their own faults.
func checkDependencies(r *reader, dependencies map[string]resilience.Settings) {
	for _, name := range slices.Sorted(maps.Keys(dependencies)) {
		at := fmt.Sprintf("dependencies[%s]", name)
		if !ruleName().MatchString(name) {
			r.wrong(at, "is no name for a dependency: use 1 to 64 letters, digits, dots, dashes and underscores")
		}
		faults, _ := errors.AsType[resilience.FaultsError](dependencies[name].Validate())
		for _, fault := range faults {
			if key := at + "." + fault.Key; !r.failed(key) {
				r.wrong(key, "%s", fault.Problem)
			}
		}
	}
}

// within reports a value outside of lowest to highest, unless the key already has a fault.
func within[T cmp.Ordered](r *reader, key string, value, lowest, highest T) {
	if (value < lowest || value > highest) && !r.failed(key) {
		r.wrong(key, "is %v, but must be from %v to %v", value, lowest, highest)
	}
}

// oneOf reports a value that is none of the allowed ones.
func oneOf(r *reader, key, value string, allowed ...string) {
	if !slices.Contains(allowed, value) && !r.failed(key) {
		r.wrong(key, "is %s, but must be one of %s%s", quote(value), strings.Join(allowed, ", "), hint(value, allowed))
	}
}

// quote shows a value from a file without trusting it.
func quote(value string) string {
	const most = 80
	if len(value) > most {
		return strconv.QuoteToASCII(value[:most]) + "..."
	}
	return strconv.QuoteToASCII(value)
}

func (d *Database) check(r *reader) {
	checkDatabaseURL(r, "database.url", d.URL)
	if d.Schema == "" || pg.CheckSchema(d.Schema) != nil {
		r.wrong("database.schema", "is %s, but must be 1 to 40 lower-case letters, digits and underscores, not starting with a digit", quote(d.Schema))
	}
	within(r, "database.max_conns", d.MaxConns, 1, 1000)
	within(r, "database.connect_timeout", d.ConnectTimeout, 100*time.Millisecond, 5*time.Minute)
	within(r, "database.statement_timeout", d.StatementTimeout, 100*time.Millisecond, time.Hour)
}

func checkDatabaseURL(r *reader, key string, u URL) {
	if u == "" {
		return
	}
	err := pg.CheckURL(u.Reveal())
	if files, ok := errors.AsType[*pg.FilesError](err); ok {
		r.wrong(key, "names files for TLS that cannot be used: %s", files.Problem)
	} else if err != nil || u.ambiguous() {
		r.wrong(key, "is no usable URL (not shown: it may hold a password); write postgres://user:password@host:5432/database and percent-encode reserved characters")
	}
}

func (a *AMQP) check(r *reader) {
	if a.URL != "" {
		if _, err := amqp.ParseURI(a.URL.Reveal()); err != nil || a.URL.ambiguous() {
			r.wrong("amqp.url", "is no usable URL (not shown: it may hold a password); write amqp://user:password@host:5672/vhost and percent-encode reserved characters")
		}
	}
	if a.ManagementURL != "" {
		parsed, err := url.Parse(a.ManagementURL.Reveal())
		if err != nil || !slices.Contains([]string{"http", "https"}, parsed.Scheme) || parsed.Host == "" || a.ManagementURL.ambiguous() {
			r.wrong("amqp.management_url", "is no usable URL (not shown: it may hold a password); write http://user:password@host:15672 and percent-encode reserved characters")
		}
	}
}

func (h *HTTP) check(r *reader) {
	_, port, err := net.SplitHostPort(h.Listen)
	if _, invalid := strconv.ParseUint(port, 10, 16); err != nil || invalid != nil {
		r.wrong("http.listen", "is %s, but must be host:port or :port; port 0 takes any free one", quote(h.Listen))
	}
	if (h.CertFile == "") != (h.KeyFile == "") {
		r.wrong("http.cert_file", "needs http.key_file, and the reverse")
	}
}

func (l *Log) check(r *reader) {
	oneOf(r, "log.level", l.Level, "trace", "debug", "info", "warn", "error")
	oneOf(r, "log.format", l.Format, "auto", "json", "pretty")
}

func (t *Tracing) check(r *reader) {
	within(r, "tracing.sample_ratio", t.SampleRatio, 0, 1)
	if t.Endpoint != "" && !isWebAddress(t.Endpoint) {
		r.wrong("tracing.endpoint", "must be the collector's URL, such as http://localhost:4318")
	}
	if t.Link != "" && (!isWebAddress(strings.ReplaceAll(t.Link, telemetry.TraceIDMark, "0")) || !strings.Contains(t.Link, telemetry.TraceIDMark)) {
		r.wrong("tracing.link", "must be the URL of a trace with {id} in the place of its id, such as https://jaeger.example.com/trace/{id}")
	}
}

func isWebAddress(text string) bool {
	parsed, err := url.Parse(text)
	return err == nil && slices.Contains([]string{"http", "https"}, parsed.Scheme) && parsed.Host != ""
}

func (c *Relay) check(r *reader) {
	within(r, "relay.shards", c.Shards, 1, 256)
	within(r, "relay.connections", c.Connections, 1, 64)
	if len(c.Exchange) > 255 {
		r.wrong("relay.exchange", "has %d bytes, but an exchange's name has at most 255", len(c.Exchange))
	}
	checkDatabaseURL(r, "relay.listen_url", c.ListenURL)
	within(r, "relay.lease", c.Lease, time.Second, 10*time.Minute)
	within(r, "relay.window", c.Window, 1, 50_000)
	within(r, "relay.window_bytes", c.WindowBytes, 64<<10, 4<<30)
	within(r, "relay.poll_min", c.PollMin, time.Millisecond, time.Minute)
	within(r, "relay.poll_max", c.PollMax, c.PollMin, time.Minute)
	within(r, "relay.confirm_timeout", c.ConfirmTimeout, 100*time.Millisecond, time.Hour)
	within(r, "relay.attempts", c.Attempts, 1, 100)
	within(r, "relay.backoff", c.Backoff, time.Millisecond, time.Hour)
	oneOf(r, "relay.on_poison", c.OnPoison, "strict", "skip")
}

// checkTopology lets the spec find its own faults.
func checkTopology(r *reader, spec topology.Spec) {
	faults, _ := errors.AsType[topology.FaultsError](spec.Validate())
	for _, fault := range faults {
		if key := "topology." + fault.Key; !r.failed(key) {
			r.wrong(key, "%s", fault.Problem)
		}
	}
}

// checkTargets finds names of dependencies that do not exist.
func checkTargets(r *reader, spec topology.Spec, dependencies map[string]resilience.Settings) {
	for i, q := range spec.Queues {
		if q.Target == nil || q.Target.HTTP == nil {
			continue
		}
		key, name := fmt.Sprintf("topology.queues[%d].target.http.dependency", i), q.Target.HTTP.Dependency
		_, known := dependencies[name]
		switch {
		case name != "" && !known:
			r.wrong(key, "is %s, which is not under dependencies%s", quote(name), hint(name, slices.Collect(maps.Keys(dependencies))))
		case name == "" && !ruleName().MatchString(q.Name):
			r.wrong(key, "is missing: the queue's name cannot be that of a dependency, which has 1 to 64 letters, digits, dots, dashes and underscores")
		}
	}
}

func (w *Watchdog) check(r *reader) {
	within(r, "watchdog.interval", w.Interval, 10*time.Millisecond, 24*time.Hour)
	within(r, "watchdog.batch", w.Batch, 1, 10_000)
	names := map[string]int{}
	for i := range w.Rules {
		key := fmt.Sprintf("watchdog.rules[%d]", i)
		w.Rules[i].check(r, key)
		if first, twice := names[w.Rules[i].Name]; twice && w.Rules[i].Name != "" {
			r.wrong(key+".name", "is also the name of watchdog.rules[%d]", first)
		} else {
			names[w.Rules[i].Name] = i
		}
	}
}

// ruleName keeps names fit for metric labels and for an event's source.
func ruleName() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`) }

func (c *Rule) check(r *reader, key string) {
	for _, field := range []struct{ name, value string }{
		{"name", c.Name},
		{"table", c.Table},
		{"key", c.Key},
		{"status", c.Status},
		{"clock", c.Clock},
		{"new_status", c.NewStatus},
		{"reason", c.Reason},
		{"event_type", c.EventType},
	} {
		if at := key + "." + field.name; field.value == "" && !r.failed(at) {
			r.wrong(at, "is missing")
		}
	}
	if c.Name != "" && !ruleName().MatchString(c.Name) {
		r.wrong(key+".name", "is %s, but must be 1 to 64 letters, digits, dots, dashes and underscores", quote(c.Name))
	}
	if len(c.Stuck) == 0 && !r.failed(key+".stuck") {
		r.wrong(key+".stuck", "must list at least one status")
	}
	if slices.Contains(c.Stuck, c.NewStatus) && c.NewStatus != "" {
		r.wrong(key+".new_status", "is one of the stuck statuses: the row would stay stuck")
	}
	if c.Limit <= 0 && !r.failed(key+".limit") {
		r.wrong(key+".limit", "must be a duration above zero, such as 10m")
	}
}
