package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/reconcile"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

func reconcileRole() Role {
	return Role{
		Name:       "reconcile",
		Configured: func(c *config.Config) bool { return len(c.Reconcile.Rules) > 0 },
		Missing:    "there are no reconcile rules; add one under reconcile.rules",
		New: func(d Deps) (Runner, error) {
			pool, err := d.Pool("reconcile")
			if err != nil {
				return nil, err
			}
			return NewReconciler(ReconcilerOptions{
				Config: d.Config, Pool: pool, Host: d.Host, Logger: d.Logger, Registerer: d.Registerer, Ready: d.Ready,
				Drain: d.Drain,
			})
		},
	}
}

// ReconcilerOptions say what a [Reconciler] is made of.
type ReconcilerOptions struct {
	// Config is a checked configuration. Required.
	Config *config.Config
	// Pool of the database. Required.
	Pool *pgxpool.Pool
	// Host names this process.
	Host string
	// Logger, Registerer and Ready are handed on. Default: none.
	Logger     zerolog.Logger
	Registerer prometheus.Registerer
	Ready      func(error)
	// Drain is how long a change in flight may go on after the stop. Default: 5 s.
	Drain time.Duration
}

// Reconciler is the reconciliation of a configuration, with a policy for each service that it asks.
type Reconciler struct {
	*reconcile.Reconciler
	logger   zerolog.Logger
	policies map[string]*policy.Policy
	clients  map[string]*httpclient.Client
}

// NewReconciler makes one, or names every fault of the rules. It does no I/O.
func NewReconciler(o ReconcilerOptions) (*Reconciler, error) {
	r := &Reconciler{logger: o.Logger, policies: map[string]*policy.Policy{}, clients: map[string]*httpclient.Client{}}
	c := o.Config.Reconcile
	rules := make([]reconcile.Rule, len(c.Rules))
	var faults []error
	for i, rule := range c.Rules {
		authority, err := r.authority(o, rule.Authority)
		if err != nil {
			faults = append(faults, fmt.Errorf("rule %q: %w", rule.Name, err))
			authority = unusable{}
		}
		rules[i] = reconcileRule(rule, authority)
	}
	made, err := reconcile.New(reconcile.Options{
		Pool: o.Pool, Schema: o.Config.Database.Schema, Rules: rules, Interval: c.Interval, Batch: c.Batch, Concurrency: c.Concurrency,
		AskTimeout: c.AskTimeout, Backoff: c.Backoff, MaxBackoff: c.MaxBackoff, Host: o.Host, Logger: o.Logger, Registerer: o.Registerer, Ready: o.Ready,
		DrainTimeout: o.Drain,
	})
	if err := errors.Join(append(faults, err)...); err != nil {
		return nil, err
	}
	r.Reconciler = made
	return r, nil
}

func reconcileRule(c config.ReconcileRule, authority reconcile.Authority) reconcile.Rule {
	answers := make(map[string]reconcile.Action, len(c.Answers))
	for answer, a := range c.Answers {
		answers[answer] = reconcile.Action{NewStatus: a.NewStatus, Reason: a.Reason, EventType: a.EventType, Exchange: a.Exchange}
	}
	return reconcile.Rule{
		Name: c.Name, Subject: c.Subject, Interval: c.Interval, Table: c.Table, Key: c.Key, Status: c.Status, Suspects: c.Suspects,
		Clock: c.Clock, Age: c.Age, Columns: c.Columns, Query: c.Query, ReasonColumn: c.ReasonColumn, ChangedColumn: c.ChangedColumn,
		Authority: authority, Keep: c.Keep, Answers: answers,
	}
}

// unusable stands for an authority with faults, so that those of its rule are found too.
type unusable struct{}

// Ask implements [reconcile.Authority].
func (unusable) Ask(context.Context, reconcile.Suspect) (string, error) {
	return "", errors.New("this authority cannot be asked")
}

func (r *Reconciler) authority(o ReconcilerOptions, c config.Authority) (reconcile.Authority, error) {
	if c.HTTP == nil {
		return reconcile.NewSQL(reconcile.SQLOptions{Pool: o.Pool, Query: c.SQL})
	}
	client, err := r.client(o, c.HTTP.Dependency)
	if err != nil {
		return nil, err
	}
	return reconcile.NewHTTP(reconcile.HTTPOptions{
		Client: client, URL: c.HTTP.URL, Headers: c.HTTP.Headers, BearerFile: c.HTTP.BearerFile, Field: c.HTTP.Field, NotFound: c.HTTP.NotFound,
	})
}

// client is one per dependency, for its places and its circuit are counted in it.
func (r *Reconciler) client(o ReconcilerOptions, name string) (*httpclient.Client, error) {
	if client, made := r.clients[name]; made {
		return client, nil
	}
	guard, err := policy.New(policy.Options{
		Name: name, Settings: o.Config.Dependencies[name], Pool: o.Pool, Schema: o.Config.Database.Schema, Host: o.Host,
		Logger: o.Logger, Metrics: o.Registerer,
	})
	if err != nil {
		return nil, err
	}
	client, err := httpclient.New(httpclient.Options{Policy: guard})
	if err != nil {
		return nil, err
	}
	r.policies[name], r.clients[name] = guard, client
	return client, nil
}

// Run reconciles until ctx ends, and writes down the states of the circuits meanwhile.
func (r *Reconciler) Run(ctx context.Context) error {
	defer r.Close()
	defer runPolicies(ctx, r.logger, r.policies)()
	return r.Reconciler.Run(ctx)
}

// Close lets idle connections go.
func (r *Reconciler) Close() {
	for _, client := range r.clients {
		client.Close()
	}
}
