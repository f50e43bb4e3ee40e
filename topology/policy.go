package topology

import (
	"regexp"
	"strings"
)

// settings are what is in force for a queue: its arguments joined with its policies.
type settings struct {
	queue  QueueState
	user   *Policy
	op     *Policy
	opaque bool // a policy's pattern is beyond Go's regular expressions
}

// Number is the value in force of a numeric setting of a queue, named as an argument such as x-delivery-limit: the lowest of the argument's
// and the policies'. by says which of them that is; set is false when there is none.
func (s State) Number(queue, argument string) (value int64, by string, set bool) {
	return s.effective(queue).number(argument)
}

// effective finds the policies that apply to a queue: of users' and of operators' policies one each, of the highest priority.
func (s State) effective(name string) settings {
	found := settings{queue: s.Queues[name]}
	for i := range s.Policies {
		p := &s.Policies[i]
		slot := &found.user
		if p.Operator {
			slot = &found.op
		}
		if !p.appliesTo(found.queue) || *slot != nil && (*slot).Priority >= p.Priority {
			continue
		}
		pattern, err := regexp.Compile(p.Pattern)
		if err != nil {
			found.opaque = true
			continue
		}
		if pattern.MatchString(name) {
			*slot = p
		}
	}
	return found
}

func (p *Policy) appliesTo(q QueueState) bool {
	switch p.ApplyTo {
	case "all", "queues":
		return true
	case "quorum_queues":
		return q.Arguments[argType] == typeQuorum
	}
	return false // exchanges, streams, and classic queues, which are not safe whatever their policies
}

// number returns the value in force of a numeric setting, named as an argument, and what sets it: the lower one wins.
func (e settings) number(argument string) (value int64, by string, set bool) {
	if n, ok := e.queue.Arguments[argument].(int64); ok {
		value, by, set = n, "argument "+argument, true
	}
	for _, p := range []*Policy{e.user, e.op} {
		if p == nil {
			continue
		}
		if n, ok := p.Definition[strings.TrimPrefix(argument, "x-")].(int64); ok && (!set || n < value) {
			value, by, set = n, p.String(), true
		}
	}
	return value, by, set
}

// text returns the value in force of another setting: an argument wins over a policy, an operator's policy over a user's.
func (e settings) text(argument string) (value string, set bool) {
	if v, ok := e.queue.Arguments[argument].(string); ok {
		return v, true
	}
	for _, p := range []*Policy{e.op, e.user} {
		if p == nil {
			continue
		}
		if v, ok := p.Definition[strings.TrimPrefix(argument, "x-")].(string); ok {
			return v, true
		}
	}
	return "", false
}

// String names the policy for people.
func (p *Policy) String() string {
	if p.Operator {
		return "operator policy " + p.Name
	}
	return "policy " + p.Name
}
