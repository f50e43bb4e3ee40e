package doctor

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/topology"
)

const halfSecond = 500 * time.Millisecond

// brokerPatience is how long the broker waits for an acknowledgement unless it is configured otherwise (consumer_timeout).
const brokerPatience = 30 * time.Minute

// consumerTimeout compares how long a consumer may hold a message, all that it has taken before it and itself late, with how long the broker waits.
func (v *visit) consumerTimeout(context.Context) ([]Finding, error) {
	var found []Finding
	for _, q := range v.config.Topology.WithDefaults().Queues {
		places := min(cmp.Or(q.Concurrency, q.Prefetch), v.config.Database.MaxConns)
		held := consumer.HeldAtMost(q.Prefetch, places, q.HandlerTimeout)
		patience, by := brokerPatience, "its default"
		if v.management != nil {
			if ms, setting, set := v.state.Number(q.Name, "x-consumer-timeout"); set {
				patience, by = time.Duration(ms)*time.Millisecond, setting
			}
		}
		if held*6 > patience*5 { // a sixth is kept as a margin, as the consumer does: 25 of 30 minutes
			found = append(found, Finding{
				Severity: Critical, About: "queue " + q.Name,
				Found: fmt.Sprintf("%d held messages, %d at a time, of up to %s each take up to %s; the broker waits %s (%s)",
					q.Prefetch, places, q.HandlerTimeout, held, patience, by),
				Meaning: "the broker gives messages to others that are still being handled, again and again; against its default the consumer refuses to start",
				Mend:    "lower handler_timeout or prefetch, or raise concurrency; or raise the broker's consumer timeout",
			})
		}
	}
	if len(found) == 0 {
		found = append(found, ok("queues", "handlers are done before the broker takes messages back, if its consumer_timeout, which cannot be seen from here, is at least 30m"))
	}
	return found, nil
}

// deadline is a limit so short that the rule's clock must be a deadline itself, such as expires_at.
const deadline = time.Second

// retryWindow checks the order of times: a message's retries end before the watchdog strikes, and it before what the saga holds expires
// and before the reconciliation asks. The inbox remembers messages for longer than all retries.
func (v *visit) retryWindow(context.Context) ([]Finding, error) {
	var found []Finding
	queue, window := longestWindow(v.config.Topology)
	warn := func(about, seen, meaning, mend string) {
		found = append(found, Finding{Severity: Warning, About: about, Found: seen, Meaning: meaning, Mend: mend})
	}
	for _, r := range v.config.Watchdog.Rules {
		if r.Limit < deadline {
			continue
		}
		if window >= r.Limit {
			warn("watchdog rule "+r.Name, fmt.Sprintf("its limit of %s is not above the retry window of queue %s, %s", r.Limit, queue, window),
				"a saga is cancelled whose message would have succeeded on a later try, if it is that queue's", "raise the limit, or lower retry, max_attempts or handler_timeout of the queue")
		}
		if e := v.o.ReservationExpiry; e > 0 && r.Limit >= e {
			warn("watchdog rule "+r.Name, fmt.Sprintf("its limit of %s is not below the reservation's expiry, %s", r.Limit, e),
				"what the saga holds is given away while the saga still runs", "lower the limit, or let reservations last longer")
		}
		found = append(found, asksEarly(r, v.config.Reconcile.Rules)...)
	}
	if remembered := v.config.Inbox.Retention; window >= remembered {
		warn("inbox.retention", fmt.Sprintf("is %s, not above the retry window of queue %s, %s", remembered, queue, window),
			"a message's last tries are not recognised: effects can happen twice", "raise inbox.retention")
	}
	if len(found) == 0 {
		text := "no queue retries"
		if queue != "" {
			text = fmt.Sprintf("the longest is %s, of queue %s, and below every limit", window, queue)
		}
		found = append(found, ok("retry windows", text))
	}
	return found, nil
}

// asksEarly finds rules of the reconciliation that ask about rows of the same table and status before the watchdog has had its time.
func asksEarly(r config.Rule, rules []config.ReconcileRule) (found []Finding) {
	for _, other := range rules {
		if other.Table == r.Table && other.Age > 0 && other.Age <= r.Limit {
			found = append(found, Finding{
				Severity: Warning, About: "reconcile rule " + other.Name, Found: fmt.Sprintf("asks after %s, not after the limit of watchdog rule %s, %s", other.Age, r.Name, r.Limit),
				Meaning: "rows are asked about, and mended, that the watchdog has yet to end", Mend: "raise its age above the limit",
			})
		}
	}
	return found
}

// longestWindow is the longest time from a message's first try to the end of its last, and whose.
func longestWindow(spec topology.Spec) (queue string, longest time.Duration) {
	for _, q := range spec.WithDefaults().Queues {
		window := time.Duration(q.MaxAttempts) * q.HandlerTimeout
		for attempt := 1; attempt < q.MaxAttempts; attempt++ {
			window += q.Retry[min(attempt, len(q.Retry))-1]
		}
		if window > longest {
			queue, longest = q.Name, window
		}
	}
	return queue, longest
}
