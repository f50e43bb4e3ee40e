package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/relay"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func (v *visit) has(role string) bool { return slices.Contains(v.o.Roles, role) }

// databaseRights finds rights in Surefoot's schema that the roles need and this user does not have.
func (v *visit) databaseRights(ctx context.Context) ([]Finding, error) {
	found, err := v.lackingRights(ctx)
	if resilience.SQLStateOf(err) == pg.UndefinedTable {
		return nil, nil // the check of the schema has told
	}
	return found, err
}

func (v *visit) lackingRights(ctx context.Context) ([]Finding, error) {
	schema := v.config.Database.Schema
	var there, usable bool
	err := v.pool.QueryRow(ctx, `SELECT count(*) > 0, coalesce(bool_or(has_schema_privilege(oid, 'USAGE')), false) FROM pg_namespace WHERE nspname = $1`, schema).
		Scan(&there, &usable)
	if err != nil || !there || !usable {
		return nil, err // the check of the schema has told
	}
	var found []Finding
	if v.has("relay") {
		err := relay.CheckRights(ctx, v.pool, schema)
		if lacking, ok := errors.AsType[*relay.RightsError](err); ok {
			found = append(found, lacks("relay", lacking.Grants))
		} else if err != nil {
			return nil, err
		}
	}
	if v.has("consume") {
		grants, err := consumer.LackingRights(ctx, v.pool, schema)
		if err != nil {
			return nil, err
		}
		if len(grants) > 0 {
			found = append(found, lacks("consume", grants))
		}
	}
	if len(found) == 0 {
		found = append(found, ok("schema "+schema, "the user has the rights of: "+strings.Join(v.o.Roles, ", ")))
	}
	return found, nil
}

func lacks(role string, grants []string) Finding {
	return Finding{
		Severity: Critical, About: role, Found: "the database user lacks rights",
		Meaning: "this role does not start, or fails at its first use of them", Mend: "as the owner of the schema: " + strings.Join(grants, " "),
	}
}

// rules lets the watchdog and the reconciliation compare their rules with the tables.
func (v *visit) rules(ctx context.Context) ([]Finding, error) {
	var found []Finding
	var failed []error
	checked := func(role string, warnings []string, err error) {
		for _, w := range warnings {
			found = append(found, Finding{Severity: Warning, About: role, Found: w, Meaning: "it works, slower or otherwise than one expects", Mend: "as it says"})
		}
		faults, others := faultsOf(err)
		for _, fault := range faults {
			found = append(found, Finding{Severity: Critical, About: role, Found: fault, Meaning: "the role does not start", Mend: "as it says; or correct the rule in surefoot.yaml"})
		}
		failed = append(failed, others...)
	}
	if v.has("watchdog") {
		o := app.WatchdogOptions(v.config)
		o.Pool, o.Logger = v.pool, v.o.Logger
		w, err := watchdog.New(o)
		if err != nil {
			checked("watchdog", nil, err)
		} else {
			warnings, err := w.Check(ctx)
			checked("watchdog", warnings, err)
		}
	}
	if v.has("reconcile") {
		r, err := app.NewReconciler(app.ReconcilerOptions{Config: v.config, Pool: v.pool, Host: v.o.Host, Logger: v.o.Logger})
		if err != nil {
			checked("reconcile", nil, err)
		} else {
			defer r.Close()
			warnings, err := r.Check(ctx)
			checked("reconcile", warnings, err)
		}
	}
	if len(found) == 0 && len(failed) == 0 {
		found = append(found, ok("watchdog and reconcile", fmt.Sprintf("%d and %d rules fit their tables", len(v.config.Watchdog.Rules), len(v.config.Reconcile.Rules))))
	}
	return found, errors.Join(failed...)
}

// faultsOf splits what rules are at fault from what kept them from being looked at.
func faultsOf(err error) (faults []string, others []error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			f, o := faultsOf(one)
			faults, others = append(faults, f...), append(others, o...)
		}
		return faults, others
	}
	switch {
	case err == nil:
	case outOfReach(err), resilience.SQLStateOf(err) != "":
		others = append(others, err)
	default:
		faults = append(faults, err.Error())
	}
	return faults, others
}

// brokerRights tries what the configured roles do in the broker, in ways that leave nothing behind.
func (v *visit) brokerRights(ctx context.Context) ([]Finding, error) {
	var found []Finding
	try := func(role, right, object string, attempt func(context.Context, string) error) error {
		err := attempt(ctx, object)
		switch code := rabbit.Code(err); {
		case code == amqp.AccessRefused:
			found = append(found, Finding{
				Severity: Critical, About: role, Found: fmt.Sprintf("the broker's user %s has no %s permission on %q", v.conn.User(), right, cmp.Or(object, "amq.default")),
				Meaning: "this role does not work", Mend: fmt.Sprintf("rabbitmqctl set_permissions -p VHOST %s CONFIGURE WRITE READ, with a %s pattern that matches it", v.conn.User(), right),
			})
		case err != nil && code != amqp.NotFound: // what is missing is told by the plan
			return fmt.Errorf("try the %s permission on %q: %w", right, object, err)
		}
		return nil
	}
	var failed []error
	if v.has("relay") {
		failed = append(failed, try("relay", "configure", "surefoot.fence.doctor."+uuid.NewString(), v.declare))
		for _, exchange := range v.config.Exchanges() {
			failed = append(failed, try("relay", "write", exchange, v.publish))
		}
	}
	if v.has("consume") || v.has("dlq") {
		failed = append(failed, try("consume, dlq", "write", "", v.publish))
	}
	for _, q := range v.config.Topology.Queues {
		if v.has("consume") && q.Target != nil {
			failed = append(failed, try("consume", "read", q.Name, v.read))
		}
		if v.has("dlq") {
			failed = append(failed, try("dlq", "read", q.DLQ(), v.read))
		}
	}
	if err := errors.Join(failed...); err != nil || len(found) > 0 {
		return found, err
	}
	return []Finding{ok("user "+v.conn.User(), "has the permissions of: "+strings.Join(v.o.Roles, ", "))}, nil
}

// errAlarmed: what publishes under an alarm is not read any more.
var errAlarmed = errors.New("an alarm is on, and the broker would not answer")

// declare takes an exclusive queue, which goes with its connection.
func (v *visit) declare(ctx context.Context, queue string) error {
	return rabbit.Fence(ctx, v.conn, queue)
}

// publish publishes in a transaction that is rolled back: the broker asks for the permission first and routes nothing.
func (v *visit) publish(ctx context.Context, exchange string) error {
	if v.alarmed {
		return errAlarmed
	}
	return v.onChannel(ctx, "try to publish", func(ch *amqp.Channel) error {
		if err := ch.Tx(); err != nil {
			return err
		}
		if err := ch.PublishWithContext(ctx, exchange, "surefoot.doctor", false, false, amqp.Publishing{}); err != nil {
			return err
		}
		return ch.TxRollback()
	})
}

// read subscribes with an argument that no broker takes: it asks for the permission first, and then refuses, so that nothing is delivered.
func (v *visit) read(ctx context.Context, queue string) error {
	err := v.onChannel(ctx, "try to read", func(ch *amqp.Channel) error {
		_, err := ch.ConsumeWithContext(ctx, queue, "surefoot doctor", false, false, false, false, amqp.Table{"x-priority": "none"})
		return err
	})
	if rabbit.Code(err) == amqp.PreconditionFailed {
		return nil
	}
	return err
}

func (v *visit) onChannel(ctx context.Context, op string, request func(*amqp.Channel) error) error {
	channel, err := v.conn.Channel(ctx)
	if err != nil {
		return err
	}
	if err := channel.Do(ctx, op, request); err != nil {
		return err // the broker has closed the channel
	}
	return channel.Close(ctx)
}
