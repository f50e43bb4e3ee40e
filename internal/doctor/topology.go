package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/topology"
)

// plan is what an apply would change.
func (v *visit) plan() topology.Plan {
	return topology.Diff(topology.Desired(v.config.Topology.WithDefaults()), v.state)
}

// topology compares surefoot.yaml with the vhost.
func (v *visit) topology(context.Context) ([]Finding, error) {
	plan := v.plan()
	var missing []string
	var found []Finding
	for _, c := range plan.Changes {
		switch {
		case c.Action == topology.ActionConflict, c.Action == topology.ActionReplace:
			found = append(found, Finding{
				Severity: Warning, About: string(c.Kind) + " " + c.Name, Found: "has other properties than surefoot.yaml wants: " + c.Detail,
				Meaning: "it works as it was made, not as it is configured", Mend: "`surefoot topology plan` says how to go round without a loss",
			})
		case !c.Prune:
			missing = append(missing, c.Name)
		}
	}
	if len(missing) > 0 {
		found = append(found, Finding{
			Severity: Warning, About: "vhost", Found: fmt.Sprintf("lacks %d things of surefoot.yaml: %s", len(missing), some(missing)),
			Meaning: "consumers wait for their queues, and events for an exchange and a binding", Mend: "`surefoot topology apply`",
		})
	}
	if len(found) == 0 {
		found = append(found, ok("vhost", fmt.Sprintf("is as surefoot.yaml wants it; only with --prune: %d changes", plan.Pending(true))))
	}
	return found, nil
}

// some is the beginning of a list.
func some(names []string) string {
	const most = 5
	if len(names) > most {
		return strings.Join(names[:most], ", ") + " and others"
	}
	return strings.Join(names, ", ")
}

// deadLetterPaths finds ways on which messages of the configured queues would be lost or stuck.
func (v *visit) deadLetterPaths(ctx context.Context) ([]Finding, error) {
	var found []Finding
	unchecked := slices.Clone(v.unchecked)
	lacking := v.lacking()
	for _, q := range v.config.Topology.WithDefaults().Queues {
		report, err := v.verify(ctx, q.Path())
		if err != nil {
			return found, err
		}
		unchecked = append(unchecked, report.Unchecked...)
		for _, f := range report.Findings {
			if !lacking[f.Queue] { // the plan tells what is missing
				found = append(found, Finding{
					Severity: Critical, About: "queue " + f.Queue, Found: f.Problem, Meaning: "messages of " + q.Name + " can be lost or get stuck", Mend: f.Mend,
				})
			}
		}
	}
	for _, text := range unchecked {
		found = append(found, Finding{Severity: Unknown, About: "paths", Found: text, Mend: "give this process the management API, with a user that has the tag monitoring"})
	}
	if len(found) == 0 {
		found = append(found, ok("paths", "what is there of them loses nothing"))
	}
	return found, nil
}

func (v *visit) verify(ctx context.Context, path topology.Path) (topology.Report, error) {
	if v.management != nil {
		return topology.Check(v.state, path), nil
	}
	return topology.Verify(ctx, v.conn, nil, path)
}

// lacking are the queues that the plan would create.
func (v *visit) lacking() map[string]bool {
	names := map[string]bool{}
	if v.management == nil {
		return names
	}
	for _, c := range v.plan().Changes {
		if c.Action == topology.ActionCreate && c.Kind == topology.KindQueue {
			names[c.Name] = true
		}
	}
	return names
}

// dlqDeliveryLimit finds dead-letter queues of the vhost that looking would empty, those that are not configured (any more) too.
func (v *visit) dlqDeliveryLimit(ctx context.Context) ([]Finding, error) {
	queues, err := v.management.Queues(ctx)
	if err != nil {
		return nil, err
	}
	policies, err := v.management.Policies(ctx)
	if err != nil {
		return nil, err
	}
	var found []Finding
	seen := 0
	for _, q := range queues {
		if !strings.HasSuffix(q.Name, deadletter.Suffix) {
			continue
		}
		seen++
		if err := deadletter.Safe(q, policies, v.conn.ServerVersion()); err != nil {
			found = append(found, Finding{
				Severity: Critical, About: "queue " + q.Name, Found: err.Error(),
				Meaning: "its messages are deleted, or put out of order, by being looked at, from the management page too", Mend: "set a delivery limit of 1000000 by the policy that it names",
			})
		}
	}
	if len(found) == 0 {
		found = append(found, ok("dead-letter queues", fmt.Sprintf("%d; each has a limit that leaves room for looks", seen)))
	}
	return found, nil
}

// dlqWear finds dead-letter queues whose oldest message has been looked at so often that its delivery limit comes near.
func (v *visit) dlqWear(ctx context.Context) ([]Finding, error) {
	if !v.has("dlq") {
		return nil, nil // looking needs that role's rights
	}
	c := v.config
	letters, err := deadletter.New(deadletter.Options{
		Pool: v.pool, Schema: c.Database.Schema, AMQPURL: c.AMQP.URL.Reveal(), ManagementURL: c.AMQP.ManagementURL.Reveal(), TLS: c.AMQP.TLS(),
		Queues: app.DeadLetterQueues(c), Logger: v.o.Logger, Host: v.o.Host, Version: v.o.Version,
	})
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, q := range c.Topology.Queues {
		limit, _, set := v.state.Number(q.DLQ(), "x-delivery-limit")
		if !set || limit <= 0 {
			continue // missing, or told by another check
		}
		deliveries, err := letters.Wear(ctx, q.Name, v.o.Who)
		switch {
		case errors.As(err, new(*deadletter.LockedError)):
			found = append(found, Finding{Severity: Unknown, About: "queue " + q.DLQ(), Found: err.Error(), Mend: "look again when it is free"})
		case errors.Is(err, deadletter.ErrUnsafe), rabbit.Code(err) == amqp.AccessRefused: // told by other checks
		case err != nil:
			return found, err
		case float64(deliveries) >= v.o.limits.wear*float64(limit):
			found = append(found, Finding{
				Severity: Warning, About: "queue " + q.DLQ(), Found: fmt.Sprintf("its oldest message has been delivered %d times, of %d", deliveries, limit),
				Meaning: "each look is a delivery; at the limit the broker deletes the message", Mend: "redrive or discard what lies there; find who looks at it so often",
			})
		}
	}
	if len(found) == 0 {
		found = append(found, ok("dead-letter queues", fmt.Sprintf("the oldest messages have used less than %.0f %% of their delivery limits", 100*v.o.limits.wear)))
	}
	return found, nil
}
