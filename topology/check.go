package topology

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrUnsafe says that a queue's messages could be lost; the error lists how, and how to mend it.
var ErrUnsafe = errors.New("topology: not safe to consume from")

// Finding is one way in which messages of a queue could be lost or stuck.
type Finding struct {
	// Queue that the finding is about: the work queue, a retry queue or the dead-letter queue.
	Queue string `json:"queue"`
	// Problem is what could happen, and why.
	Problem string `json:"problem"`
	// Mend is what to do.
	Mend string `json:"mend"`
}

// Report is what Verify found.
type Report struct {
	// Path that was looked at.
	Path Path `json:"path"`
	// Findings; none: safe.
	Findings []Finding `json:"findings"`
	// Unchecked is what could not be looked at, and why.
	Unchecked []string `json:"unchecked"`
}

// Err is nil for a safe path; else it wraps ErrUnsafe and lists the findings. What is unchecked is no error.
func (r Report) Err() error {
	if len(r.Findings) == 0 {
		return nil
	}
	lines := make([]string, len(r.Findings))
	for i, f := range r.Findings {
		lines[i] = fmt.Sprintf("queue %q %s: %s", f.Queue, f.Problem, f.Mend)
	}
	return fmt.Errorf("%w: %s", ErrUnsafe, strings.Join(lines, "; "))
}

const mendApply = "run `surefoot topology apply`"

// mendRetry is for a retry queue that is not there: the queues may be right, and the program's own delays not.
func mendRetry(tier Tier) string {
	return mendApply + fmt.Sprintf("; if surefoot.yaml gives this queue other retry delays than the %s that this consumer wants, "+
		"take them from there (consumer.FromConfig)", shortDuration(tier.Delay))
}

// Check judges the way of a work queue's messages in an actual state. It is pure.
func Check(actual State, path Path) Report {
	c := pathChecker{state: actual, report: Report{Path: path}}
	c.work(path)
	for _, tier := range path.Retry {
		c.retry(path, tier)
	}
	c.deadLetters(path.DeadLetters)
	return c.report
}

type pathChecker struct {
	state  State
	report Report
}

func (c *pathChecker) find(bad bool, queue, problem, mend string) {
	if bad {
		c.report.Findings = append(c.report.Findings, Finding{queue, problem, mend})
	}
}

// queue checks what every queue of a path needs, and returns its settings; false when it is missing.
func (c *pathChecker) queue(name, purpose string) (settings, bool) {
	q, exists := c.state.Queues[name]
	if !exists {
		c.find(true, name, "is missing ("+purpose+")", mendApply)
		return settings{}, false
	}
	c.find(!q.Durable || q.AutoDelete || q.Exclusive, name, "does not outlive a restart or its consumers", "make it durable; `surefoot topology plan` says how")
	c.find(q.Arguments[argType] != typeQuorum, name, fmt.Sprintf("is a %v queue: it dead-letters at most once and is not replicated", q.Arguments[argType]),
		"make a quorum queue beside it; `surefoot topology plan` says how")
	e := c.state.effective(name)
	_, by, expires := e.number(argExpires)
	c.find(expires, name, "expires ("+by+") and is then deleted with its messages", "remove that setting")
	if e.opaque {
		c.report.Unchecked = append(c.report.Unchecked, fmt.Sprintf("queue %q: the pattern of a policy cannot be read; look at its policies by hand", name))
	}
	return e, true
}

// lossless checks that dead letters of a queue are kept until their new queue has confirmed them.
func (c *pathChecker) lossless(name string, e settings) {
	strategy, _ := e.text(argStrategy)
	c.find(strategy != strategyAtLeast, name, "dead-letters at most once: a dead letter that cannot be stored is lost",
		"set dead-letter-strategy to at-least-once; `surefoot topology plan` says how")
	overflow, _ := e.text(argOverflow)
	c.find(overflow != overflowReject, name, "has no overflow=reject-publish, without which the broker silently dead-letters at most once",
		"set overflow to reject-publish; `surefoot topology plan` says how")
}

func (c *pathChecker) work(path Path) {
	e, exists := c.queue(path.Queue, "the work queue")
	if !exists {
		return
	}
	c.lossless(path.Queue, e)
	argued, _ := e.queue.Arguments[argDeliveryLimit].(int64)
	limit, by, set := e.number(argDeliveryLimit)
	c.find(!set, path.Queue, "has no delivery limit of its own: to 3.13 a message that kills its consumer comes back for ever",
		fmt.Sprintf("set delivery-limit to %d; `surefoot topology plan` says how", workDeliveryLimit))
	c.find(set && (limit < 1 || limit < argued), path.Queue, fmt.Sprintf("has its delivery limit lowered to %d by %s", limit, by), "remove delivery-limit there")
	c.leads(path.Queue, e, path.DeadLetters, "dead letters", append([]Tier{{Queue: path.Queue}}, path.Retry...))
}

func (c *pathChecker) retry(path Path, tier Tier) {
	if _, exists := c.state.Queues[tier.Queue]; !exists {
		c.find(true, tier.Queue, fmt.Sprintf("is missing (a retry queue%s)", c.otherTiers(path)), mendRetry(tier))
		return
	}
	e, _ := c.queue(tier.Queue, "a retry queue")
	c.lossless(tier.Queue, e)
	ttl, by, set := e.number(argTTL)
	c.find(!set, tier.Queue, "has no message TTL: what enters it stays for ever", mendApply+" with a new name for the queue, or set message-ttl by a policy")
	c.find(set && ttl != tier.Delay.Milliseconds(), tier.Queue, fmt.Sprintf("returns messages after %s (%s), not after %s", time.Duration(ttl)*time.Millisecond, by, tier.Delay),
		"make the delay in the configuration and the queue's TTL agree, and take a program's from there (consumer.FromConfig); `surefoot topology plan` says how")
	c.leads(tier.Queue, e, path.Queue, "messages", nil)
}

// otherTiers tells which retry queues a work queue has beside those that are wanted: then it is the delays that differ.
func (c *pathChecker) otherTiers(path Path) string {
	var others []string
	for name := range c.state.Queues {
		tier, ours := strings.CutPrefix(name, path.Queue+retrySuffix)
		wanted := slices.ContainsFunc(path.Retry, func(t Tier) bool { return t.Queue == name })
		if ours && (tier == "" || tier[0] == '.') && !wanted {
			others = append(others, name)
		}
	}
	if len(others) == 0 {
		return ""
	}
	slices.Sort(others)
	return "; the broker has " + strings.Join(others[:min(len(others), tiersMax)], ", ") + " instead"
}

func (c *pathChecker) deadLetters(name string) {
	e, exists := c.queue(name, "the dead-letter queue")
	if !exists {
		return
	}
	limit, by, set := e.number(argDeliveryLimit)
	c.find(!set, name, "has no delivery limit of its own: from 4.0 it is 20, and looking at a message counts", fmt.Sprintf("make it anew with delivery limit %d; `surefoot topology plan` says how", dlqDeliveryLimit))
	c.find(set && limit < dlqDeliveryLimit, name, fmt.Sprintf("has the delivery limit %d (%s): looking at messages deletes them", limit, by), fmt.Sprintf("raise it to %d; `surefoot topology plan` says how", dlqDeliveryLimit))
	_, by, ttl := e.number(argTTL)
	c.find(ttl, name, "lets messages expire ("+by+")", "remove that setting")
	for _, length := range []string{argMaxLength, argMaxLengthBytes} {
		_, by, limited := e.number(length)
		overflow, _ := e.text(argOverflow)
		c.find(limited && overflow != overflowReject, name, "drops its oldest messages when it is full ("+by+")", "remove that setting, or set overflow to reject-publish beside it")
	}
}

// leads checks that what from dead-letters arrives in queue to, and in none of forbidden.
func (c *pathChecker) leads(from string, e settings, to, what string, forbidden []Tier) {
	dlx, set := e.text(argDLX)
	if !set {
		c.find(true, from, "has no dead-letter exchange: "+what+" are deleted", "make one; `surefoot topology plan` says how")
		return
	}
	key, keyed := e.text(argDLKey)
	exchange, exists := c.state.Exchanges[dlx]
	if dlx != "" && !exists {
		c.find(true, from, fmt.Sprintf("dead-letters to exchange %q, which is missing: %s are stuck or lost", dlx, what), mendApply)
		return
	}
	if exchange.Type == "headers" {
		c.report.Unchecked = append(c.report.Unchecked, fmt.Sprintf("queue %q: whether headers exchange %q leads to %q", from, dlx, to))
		return
	}
	_, arrives := c.state.Queues[to] // if not, that is a finding of its own
	c.find(arrives && !c.state.routes(dlx, exchange.Type, key, keyed, to), from, fmt.Sprintf("dead-letters to exchange %q, from where no binding leads to %q: %s are stuck or lost", dlx, to, what), mendApply)
	for _, tier := range forbidden {
		c.find(c.state.routes(dlx, exchange.Type, key, keyed, tier.Queue), from, fmt.Sprintf("dead-letters to %q: the broker drops a message that comes around a second time", tier.Queue),
			fmt.Sprintf("unbind %q from exchange %q", tier.Queue, dlx))
	}
}

// routes says whether every message that is dead-lettered to an exchange reaches the queue. Without a key of its own each keeps the one that it came with.
func (s State) routes(exchange, kind, key string, keyed bool, queue string) bool {
	if exchange == "" {
		return keyed && key == queue
	}
	for _, b := range s.bindingsOf(queue) {
		if b.Exchange != exchange {
			continue
		}
		switch kind {
		case "fanout":
			return true
		case exchangeTypeDirect:
			if keyed && b.RoutingKey == key {
				return true
			}
		case exchangeTypeTopic:
			if b.RoutingKey == "#" || keyed && topicMatches(b.RoutingKey, key) {
				return true
			}
		}
	}
	return false
}

// topicMatches is the broker's rule: * is one word, # any number. matched[i] says whether the pattern so far matches the first i words, so the
// work is bounded by the product of both lengths.
func topicMatches(pattern, key string) bool {
	words := strings.Split(key, ".")
	matched := make([]bool, len(words)+1)
	matched[0] = true
	for part := range strings.SplitSeq(pattern, ".") {
		next := make([]bool, len(words)+1)
		next[0] = matched[0] && part == "#"
		for i, word := range words {
			if part == "#" {
				next[i+1] = matched[i+1] || next[i]
			} else {
				next[i+1] = matched[i] && (part == "*" || part == word)
			}
		}
		matched = next
	}
	return matched[len(words)]
}
