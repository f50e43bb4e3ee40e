package console

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/reconcile"
	"github.com/surefoot-mq/surefoot/watchdog"
)

const (
	sagasLimit = 200
	// sagasSoon is how long before their limit sagas are listed.
	sagasSoon = time.Hour
)

// ruleSagas are the sagas of one rule.
type ruleSagas struct {
	Name    string
	Sagas   []sagaRow
	Limited bool
}

type sagaRow struct {
	watchdog.Saga
	Kind status
}

type sagasData struct {
	Rule, State  string
	Rules        []ruleSagas
	Names        []string
	States       []watchdog.State
	Unconfigured bool
}

func (c *Console) sagasPage(r *http.Request) (found, error) {
	d := sagasData{Rule: r.URL.Query().Get("rule"), State: r.URL.Query().Get("state"), States: watchdog.States()}
	w := c.opts.Sagas
	if w == nil {
		d.Unconfigured = true
		return found{title: "Sagas", data: d}, nil
	}
	d.Names = w.RuleNames()
	f := watchdog.Filter{Rule: d.Rule, Soon: sagasSoon, Limit: sagasLimit}
	if d.State != "" {
		f.States = []watchdog.State{watchdog.State(d.State)}
		if !slices.Contains(d.States, f.States[0]) {
			return found{}, bad("there is no such state")
		}
	}
	if d.Rule != "" && !slices.Contains(d.Names, d.Rule) {
		return found{}, &statusError{http.StatusNotFound, "there is no rule " + cell(d.Rule), nil}
	}
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	sagas, err := w.List(ctx, f)
	if err != nil {
		return found{}, err
	}
	for _, name := range d.Names {
		if d.Rule == "" || d.Rule == name {
			d.Rules = append(d.Rules, ofRule(name, sagas))
		}
	}
	return found{title: "Sagas", data: d}, nil
}

func ofRule(name string, sagas []watchdog.Saga) ruleSagas {
	rule := ruleSagas{Name: name}
	for _, s := range sagas {
		if s.Rule == name {
			rule.Sagas = append(rule.Sagas, sagaRow{s, sagaStatus(s.State)})
		}
	}
	rule.Limited = len(rule.Sagas) >= sagasLimit
	return rule
}

func sagaStatus(s watchdog.State) status {
	switch s {
	case watchdog.StateOverdue:
		return status{"warn", "overdue"}
	case watchdog.StateFailing:
		return status{"bad", "failing"}
	case watchdog.StateHeld:
		return status{"none", "held"}
	case watchdog.StateDueSoon:
	}
	return status{"none", "due soon"}
}

// actOnSagas does to the chosen rows of one rule what the watchdog's commands do.
func (c *Console) actOnSagas(r *http.Request) (next, error) {
	w := c.opts.Sagas
	if w == nil {
		return next{}, bad("there are no watchdog rules")
	}
	act := watchdog.Act{Rule: r.PostFormValue("rule"), Keys: listOf(r.PostForm, "key"), Who: c.who(r), Origin: c.origin()}
	var err error
	if act.Reason, err = reasonOf(r); err != nil {
		return next{}, err
	}
	if len(act.Keys) == 0 || !slices.Contains(w.RuleNames(), act.Rule) {
		return next{}, bad("choose sagas first")
	}
	var acted []watchdog.Acted
	switch do := r.PostFormValue("do"); do {
	case "extend":
		by, wrong := time.ParseDuration(strings.TrimSpace(r.PostFormValue("by")))
		if wrong != nil || by <= 0 {
			return next{}, bad("more time is a duration such as 30m, not %q", cell(r.PostFormValue("by")))
		}
		acted, err = w.Extend(r.Context(), act, by)
	case "skip":
		acted, err = w.Skip(r.Context(), act)
	case "lift":
		acted, err = w.Lift(r.Context(), act)
	case "cancel":
		acted, err = w.Cancel(r.Context(), act, false)
	default:
		return next{}, bad("sagas are extended, skipped or cancelled, or their hold is lifted")
	}
	if err != nil {
		return next{}, err
	}
	var failed []failedAct
	for _, a := range acted {
		if !a.Done {
			failed = append(failed, failedAct{a.Key, a.Outcome})
		}
	}
	return next{link("/sagas", "rule", r.PostFormValue("back")), "sagas"}, notAll(len(acted), failed)
}

// origin is from where this process acts, for the audit.
func (c *Console) origin() string { return "surefoot " + c.opts.Version + " on " + c.opts.Host }

// overdue counts by rule, up to a bound.
func (c *Console) overdue(ctx context.Context) (map[string]int, error) {
	counts := map[string]int{}
	if c.opts.Sagas == nil {
		return counts, nil
	}
	sagas, err := c.opts.Sagas.List(ctx, watchdog.Filter{States: []watchdog.State{watchdog.StateOverdue, watchdog.StateFailing}, Limit: sagasLimit})
	for _, s := range sagas {
		counts[s.Rule]++
	}
	return counts, err
}

type reconcileData struct {
	Suspects     []reconcile.Listed
	Runs         []reconcile.RunRecord
	Unconfigured bool
	Limited      bool
}

func (c *Console) reconcilePage(r *http.Request) (found, error) {
	d := reconcileData{}
	if c.opts.Reconciler == nil {
		d.Unconfigured = true
		return found{title: "Reconciliation", data: d}, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	var err error
	if d.Suspects, err = c.opts.Reconciler.List(ctx, sagasLimit); err != nil {
		return found{}, err
	}
	if d.Runs, err = c.opts.Reconciler.Runs(ctx, runsLimit); err != nil {
		return found{}, err
	}
	d.Limited = len(d.Suspects) >= sagasLimit
	return found{title: "Reconciliation", data: d}, nil
}
