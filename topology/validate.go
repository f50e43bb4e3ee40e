package topology

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Bounds of a spec.
const (
	nameMax     = 255 // bytes of an AMQP short string
	tiersMax    = 10
	delayMin    = 10 * time.Millisecond
	delayMax    = 7 * 24 * time.Hour
	timeoutMax  = 25 * time.Minute // under the broker's consumer timeout of 30 minutes
	attemptsMax = 1000
	noteMax     = 1000 // bytes of owner and runbook
)

// Fault is one thing that is wrong with a spec.
type Fault struct {
	// Key is where, such as queues[2].retry[1].
	Key string
	// Problem is what, and what to do.
	Problem string
}

// FaultsError is all that is wrong with a spec.
type FaultsError []Fault

// Error lists the faults, one a line.
func (f FaultsError) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = "topology: " + fault.Key + " " + fault.Problem
	}
	return strings.Join(lines, "\n")
}

// Validate finds all faults at once and returns them as FaultsError, or nil.
func (s Spec) Validate() error {
	c := checker{exchanges: map[string]string{}, queues: map[string]string{}}
	for i, q := range s.Queues {
		c.queue(fmt.Sprintf("queues[%d]", i), q, s.Exchange)
	}
	if len(c.faults) == 0 {
		return nil
	}
	return c.faults
}

// checker gathers faults. It remembers who claimed a name, derived ones included.
type checker struct {
	faults    FaultsError
	queues    map[string]string // name -> key of its owner
	exchanges map[string]string // name -> base exchange it derives from
}

func (c *checker) wrong(bad bool, key, problem string, args ...any) {
	if bad {
		c.faults = append(c.faults, Fault{key, fmt.Sprintf(problem, args...)})
	}
}

func (c *checker) queue(key string, raw Queue, exchange string) {
	c.wrong(raw.Retry != nil && len(raw.Retry) == 0, key+".retry", "is empty; give at least one delay, or leave it out for 30s")
	q := raw.withDefaults(exchange)
	c.exchange(key, q)
	c.name(key, q)
	c.bindings(key, q)
	c.retry(key, q)
	c.consumption(key, q)
	c.notes(key, q)
}

func (c *checker) exchange(key string, q Queue) {
	key += ".exchange"
	if q.Exchange == "" {
		c.wrong(true, key, "is missing; name it here, or for all queues at the top")
		return
	}
	c.text(key, q.Exchange, nameMax-len(retrySuffix))
	for _, name := range []string{q.Exchange, q.Exchange + dlxSuffix, q.Exchange + retrySuffix} {
		base, known := c.exchanges[name]
		c.wrong(known && base != q.Exchange, key, "%q makes exchange %q, which %q makes too: dead letters or retries would come back as events; use another name",
			q.Exchange, name, base)
		c.exchanges[name] = q.Exchange
	}
}

// text checks a name for the broker and for people.
func (c *checker) text(key, name string, most int) {
	c.wrong(len(name) > most, key, "has %d bytes; at most %d leave room for the suffixes within %d", len(name), most, nameMax)
	c.wrong(!plain(name), key, "has characters that are not printable, or is not UTF-8")
	c.wrong(strings.HasPrefix(name, "amq."), key, "starts with amq., which the broker keeps for itself")
}

func plain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func (c *checker) name(key string, q Queue) {
	key += ".name"
	if q.Name == "" {
		c.wrong(true, key, "is missing")
		return
	}
	longest := len(DLQSuffix)
	for _, tier := range q.Tiers() {
		longest = max(longest, len(tier.Queue)-len(q.Name))
	}
	c.text(key, q.Name, nameMax-longest)
	c.wrong(strings.HasPrefix(q.Name, "surefoot."), key, "starts with surefoot., which is kept for fences")
	derived := []string{q.Name, q.DLQ()}
	for _, tier := range q.Tiers() {
		derived = append(derived, tier.Queue)
	}
	slices.Sort(derived) // equal tiers are found with the delays
	for _, name := range slices.Compact(derived) {
		owner, taken := c.queues[name]
		c.wrong(taken, key, "%q makes queue %q, which %s makes too; names must be unique", q.Name, name, owner)
		if !taken {
			c.queues[name] = key
		}
	}
}

func (c *checker) bindings(key string, q Queue) {
	seen := map[string]bool{}
	for i, pattern := range q.Bindings {
		at := fmt.Sprintf("%s.bindings[%d]", key, i)
		c.wrong(pattern == "", at, "is empty; write a pattern such as order.*")
		c.wrong(len(pattern) > nameMax, at, "has %d bytes; at most %d fit a routing key", len(pattern), nameMax)
		c.wrong(!plain(pattern), at, "has characters that are not printable, or is not UTF-8")
		c.wrong(seen[pattern], at, "%q is there twice", pattern)
		for word := range strings.SplitSeq(pattern, ".") {
			if len(word) > 1 && strings.ContainsAny(word, "*#") {
				c.wrong(true, at, "%q: * and # stand for whole words between dots; the broker would take %q literally", pattern, word)
				break
			}
		}
		seen[pattern] = true
	}
}

func (c *checker) retry(key string, q Queue) {
	c.wrong(len(q.Retry) > tiersMax, key+".retry", "has %d delays; at most %d", len(q.Retry), tiersMax)
	for i, delay := range q.Retry {
		at := fmt.Sprintf("%s.retry[%d]", key, i)
		c.wrong(delay < delayMin || delay > delayMax, at, "is %s, but must be from %s to %s", delay, delayMin, delayMax)
		c.wrong(delay%time.Millisecond != 0, at, "is %s, but must be whole milliseconds", delay)
		c.wrong(i > 0 && delay <= q.Retry[i-1], at, "is %s, not longer than the one before; list the shortest first", delay)
	}
}

func (c *checker) consumption(key string, q Queue) {
	c.wrong(q.MaxAttempts < 1 || q.MaxAttempts > attemptsMax, key+".max_attempts", "is %d, but must be from 1 to %d", q.MaxAttempts, attemptsMax)
	c.wrong(q.Prefetch < 1 || q.Prefetch > 65535, key+".prefetch", "is %d, but must be from 1 to 65535", q.Prefetch)
	c.wrong(q.Concurrency < 1 || q.Concurrency > q.Prefetch, key+".concurrency", "is %d, but must be from 1 to prefetch (%d)", q.Concurrency, q.Prefetch)
	c.wrong(q.HandlerTimeout < time.Millisecond || q.HandlerTimeout > timeoutMax, key+".handler_timeout",
		"is %s, but must be from 1ms to %s: the broker takes messages back after 30m", q.HandlerTimeout, timeoutMax)
	c.wrong(q.Ordering != OrderingNone && q.Ordering != OrderingLanes, key+".ordering", "is %q, but must be none or lanes", q.Ordering)
	if q.Target != nil {
		c.target(key+".target", *q.Target)
	}
}

func (c *checker) target(key string, t Target) {
	if t.HTTP != nil {
		c.wrong(t.Exec != nil || t.KeepAlive, key, "has http, and exec or keep_alive; a queue has one target")
		c.endpoint(key+".http", *t.HTTP)
		return
	}
	c.wrong(len(t.Exec) == 0 || t.Exec[0] == "", key+".exec", "needs the program and its arguments as a list; or give http with an url")
}

func (c *checker) endpoint(key string, t HTTPTarget) {
	if t.URL == "" {
		c.wrong(true, key+".url", "is missing")
		return
	}
	u, err := url.Parse(t.URL)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		c.wrong(true, key+".url", "must be a whole one, such as https://mail.example.org/messages")
	case u.User != nil:
		c.wrong(true, key+".url", "has a user or a password in it (not shown); put a token into a file and name that as bearer_file")
	case u.Fragment != "":
		c.wrong(true, key+".url", "has a fragment, which is never sent")
	}
	c.wrong((t.CertFile == "") != (t.KeyFile == ""), key+".cert_file", "and key_file go together; give both or none")
}

func (c *checker) notes(key string, q Queue) {
	c.wrong(len(q.Owner) > noteMax || !plain(q.Owner), key+".owner", "must be at most %d bytes of printable text", noteMax)
	c.wrong(len(q.Runbook) > noteMax || !plain(q.Runbook), key+".runbook", "must be at most %d bytes of printable text", noteMax)
}
