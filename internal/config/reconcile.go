package config

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/surefoot-mq/surefoot/resilience"
)

// Reconcile says which rows of the user's tables are asked about, and whom.
type Reconcile struct {
	// Interval is the time between two cycles of a rule that has none of its own. Default 1h.
	Interval time.Duration `yaml:"interval"`
	// Batch is the most suspects that are claimed at a time. Default 100.
	Batch int `yaml:"batch"`
	// Concurrency is how many suspects of a rule are asked about at a time. Default 10.
	Concurrency int `yaml:"concurrency"`
	// AskTimeout limits one question with all its tries. Default 10s.
	AskTimeout time.Duration `yaml:"ask_timeout"`
	// Backoff is the wait before a suspect without an answer is asked about again, doubled for each further time. Default 1m.
	Backoff time.Duration `yaml:"backoff"`
	// MaxBackoff bounds that wait. Default 1h.
	MaxBackoff time.Duration `yaml:"max_backoff"`
	// Rules are what is reconciled. Default: none.
	Rules []ReconcileRule `yaml:"rules"`
}

// ReconcileRule says which rows are suspects, who knows about them, and what becomes of them.
type ReconcileRule struct {
	// Name tells the rule from others. Required.
	Name string `yaml:"name"`
	// Subject is what a row is, in the log line of a discrepancy. Default: row.
	Subject string `yaml:"subject"`
	// Interval between two cycles of this rule. Default: that of all rules.
	Interval time.Duration `yaml:"interval"`
	// Table is the table with its schema, as schema.table. Required.
	Table string `yaml:"table"`
	// Key is the column that identifies a row; it becomes the event's key. Required.
	Key string `yaml:"key"`
	// Status is the column that holds the state. Required.
	Status string `yaml:"status"`
	// Suspects are the statuses in which a row may be wrong. Required without query.
	Suspects []string `yaml:"suspects"`
	// Clock is the timestamptz column that says since when. Required without query.
	Clock string `yaml:"clock"`
	// Age is how long a row may be in such a status before it is a suspect. Required without query.
	Age time.Duration `yaml:"age"`
	// Columns that the authority and the event are told: name to column. Default: none.
	Columns map[string]string `yaml:"columns"`
	// Query finds the suspects instead: a SELECT of key, status, since, and further columns. Default: none.
	Query string `yaml:"query"`
	// ReasonColumn also gets the reason. Default: none.
	ReasonColumn string `yaml:"reason_column"`
	// ChangedColumn, a timestamptz, gets the time of the change. Default: none.
	ChangedColumn string `yaml:"changed_column"`
	// Authority is who is asked. Required.
	Authority Authority `yaml:"authority"`
	// Keep are the answers that show a row to be right. Default: none.
	Keep []string `yaml:"keep"`
	// Answers that show a row to be wrong, and what becomes of it. Required.
	Answers map[string]ReconcileAction `yaml:"answers"`
}

// Authority is who knows about suspects: a query or another service, one of the two.
type Authority struct {
	// SQL is a SELECT of one text; {key}, {status} and {column} are what is known of the suspect. No row is the answer not_found.
	SQL string `yaml:"sql"`
	// HTTP asks another service.
	HTTP *HTTPAuthority `yaml:"http"`
}

// HTTPAuthority is another service that is asked with GET.
type HTTPAuthority struct {
	// URL with {key}, {status} and {column} in its path and query. Required.
	URL string `yaml:"url"`
	// Dependency under dependencies whose limits hold. Required.
	Dependency string `yaml:"dependency"`
	// Field of the JSON answer. Default: status.
	Field string `yaml:"field"`
	// NotFound is the code of a 404 that is the answer not_found, or FIELD=VALUE. Default: NOT_FOUND.
	NotFound string `yaml:"not_found"`
	// Headers of the question; placeholders as in url. Default: none.
	Headers map[string]string `yaml:"headers"`
	// BearerFile holds a token that is sent as authorization. Default: none.
	BearerFile string `yaml:"bearer_file"`
}

// ReconcileAction is what becomes of a row that is wrong.
type ReconcileAction struct {
	// NewStatus is what the row becomes. Required.
	NewStatus string `yaml:"new_status"`
	// Reason is written into the event. Required.
	Reason string `yaml:"reason"`
	// EventType is the event's type and routing key. Required.
	EventType string `yaml:"event_type"`
	// Exchange is where the event is published. Default: the relay's exchange.
	Exchange string `yaml:"exchange"`
}

func defaultReconcile() Reconcile {
	return Reconcile{
		Interval: time.Hour, Batch: 100, Concurrency: 10, AskTimeout: 10 * time.Second, Backoff: time.Minute, MaxBackoff: time.Hour,
	}
}

// check finds what the form alone shows; package reconcile knows the rest, such as which names can be columns.
func (c *Reconcile) check(r *reader, dependencies map[string]resilience.Settings) {
	within(r, "reconcile.interval", c.Interval, time.Second, 7*24*time.Hour)
	within(r, "reconcile.batch", c.Batch, 1, 10_000)
	within(r, "reconcile.concurrency", c.Concurrency, 1, 1000)
	within(r, "reconcile.ask_timeout", c.AskTimeout, 10*time.Millisecond, 10*time.Minute)
	within(r, "reconcile.backoff", c.Backoff, time.Second, 24*time.Hour)
	within(r, "reconcile.max_backoff", c.MaxBackoff, c.Backoff, 7*24*time.Hour)
	names := map[string]int{}
	for i := range c.Rules {
		key := fmt.Sprintf("reconcile.rules[%d]", i)
		c.Rules[i].check(r, key, dependencies)
		if first, twice := names[c.Rules[i].Name]; twice && c.Rules[i].Name != "" {
			r.wrong(key+".name", "is also the name of reconcile.rules[%d]", first)
		} else {
			names[c.Rules[i].Name] = i
		}
	}
}

// required reports what is missing.
func required(r *reader, key string, fields ...string) {
	for i := 0; i+1 < len(fields); i += 2 {
		if at := key + "." + fields[i]; fields[i+1] == "" && !r.failed(at) {
			r.wrong(at, "is missing")
		}
	}
}

func (c *ReconcileRule) check(r *reader, key string, dependencies map[string]resilience.Settings) {
	required(r, key, "name", c.Name, "table", c.Table, "key", c.Key, "status", c.Status)
	if c.Name != "" && !ruleName().MatchString(c.Name) {
		r.wrong(key+".name", "is %s, but must be 1 to 64 letters, digits, dots, dashes and underscores", quote(c.Name))
	}
	if c.Interval != 0 {
		within(r, key+".interval", c.Interval, time.Second, 7*24*time.Hour)
	}
	c.checkSuspects(r, key)
	c.Authority.check(r, key+".authority", dependencies)
	if len(c.Answers) == 0 && !r.failed(key+".answers") {
		r.wrong(key+".answers", "must have at least one answer that shows a row to be wrong")
	}
	for _, answer := range slices.Sorted(maps.Keys(c.Answers)) {
		at, action := fmt.Sprintf("%s.answers[%s]", key, answer), c.Answers[answer]
		required(r, at, "new_status", action.NewStatus, "reason", action.Reason, "event_type", action.EventType)
		if action.NewStatus != "" && slices.Contains(c.Suspects, action.NewStatus) {
			r.wrong(at+".new_status", "is one of the suspect statuses: the row would stay suspect")
		}
		if slices.Contains(c.Keep, answer) {
			r.wrong(at, "is also in keep: the same answer cannot show a row to be right and wrong")
		}
	}
}

func (c *ReconcileRule) checkSuspects(r *reader, key string) {
	if c.Query != "" {
		for _, field := range []struct {
			name string
			set  bool
		}{{"suspects", len(c.Suspects) > 0}, {"age", c.Age != 0}, {"columns", len(c.Columns) > 0}} {
			if field.set {
				r.wrong(key+"."+field.name, "does not go with query, which says what it would")
			}
		}
		return
	}
	required(r, key, "clock", c.Clock)
	if len(c.Suspects) == 0 && !r.failed(key+".suspects") {
		r.wrong(key+".suspects", "must list at least one status, or there must be a query")
	}
	if c.Age <= 0 && !r.failed(key+".age") {
		r.wrong(key+".age", "must be a duration above zero, such as 20m")
	}
}

func (c *Authority) check(r *reader, key string, dependencies map[string]resilience.Settings) {
	if (c.SQL == "") == (c.HTTP == nil) {
		if !r.failed(key+".sql") && !r.failed(key+".http") {
			r.wrong(key, "must have one of sql and http")
		}
		return
	}
	if c.HTTP == nil {
		return
	}
	required(r, key+".http", "url", c.HTTP.URL, "dependency", c.HTTP.Dependency)
	if _, known := dependencies[c.HTTP.Dependency]; !known && c.HTTP.Dependency != "" {
		r.wrong(key+".http.dependency", "is %s, which is not under dependencies%s", quote(c.HTTP.Dependency), hint(c.HTTP.Dependency, slices.Collect(maps.Keys(dependencies))))
	}
}
