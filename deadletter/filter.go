package deadletter

import (
	"fmt"
	"slices"
	"time"
)

// maxIDs bounds a request's list of ids.
const maxIDs = 10_000

// Filter chooses letters; a letter must meet every part that is set. The zero value chooses all.
type Filter struct {
	// Type is the message type, exactly. Default: any.
	Type string
	// ErrorClass is the class of the failure record, exactly; for a letter of the broker without one, the broker's
	// reason: delivery_limit, rejected, expired, maxlen. Default: any.
	ErrorClass string
	// ErrorContains is part of the error's message or type, or of a program's standard error, whatever the case. Default: any.
	ErrorContains string
	// Fingerprint groups failures of one cause, see [FailureGroup]. Default: any.
	Fingerprint string
	// Where are conditions on fields of the JSON body, all of which must be met. Default: none.
	Where []Where
	// IDs are message ids, any of them. Default: any.
	IDs []string
	// Since chooses what failed last at this time or later; without a failure record the broker's time of death
	// counts, and a letter with neither time does not match. Default: any.
	Since time.Time
}

func (f Filter) validate() error {
	if len(f.IDs) > maxIDs {
		return fmt.Errorf("%w: %d ids, more than the limit of %d", ErrBadRequest, len(f.IDs), maxIDs)
	}
	if len(f.Where) > maxWhere {
		return fmt.Errorf("%w: %d conditions, more than the limit of %d", ErrBadRequest, len(f.Where), maxWhere)
	}
	if slices.Contains(f.IDs, "") {
		return fmt.Errorf("%w: an id is empty", ErrBadRequest)
	}
	return nil
}

// chooser decides about letters. The zero value chooses every one.
type chooser struct {
	Filter
	ids              map[string]struct{}
	includeRepeaters bool
	names            names
	run              string
	wave             *wave // of a run: what is chosen; nil: the filter chooses
}

func newChooser(f Filter, n names, includeRepeaters bool, run string) chooser {
	c := chooser{Filter: f, names: n, includeRepeaters: includeRepeaters, run: run}
	if len(f.IDs) > 0 {
		c.ids = make(map[string]struct{}, len(f.IDs))
		for _, id := range f.IDs {
			c.ids[id] = struct{}{}
		}
	}
	return c
}

func (c *chooser) matches(l *facts, body []byte) bool {
	if c.ids != nil {
		if _, listed := c.ids[l.id]; !listed {
			return false
		}
	}
	return (c.Type == "" || c.Type == l.typ) &&
		(c.ErrorClass == "" || c.ErrorClass == l.class) &&
		(c.ErrorContains == "" || l.contains(c.ErrorContains)) &&
		(c.Fingerprint == "" || c.Fingerprint == l.fingerprint()) &&
		(c.Since.IsZero() || !l.diedAt.IsZero() && !l.diedAt.Before(c.Since)) &&
		!slices.ContainsFunc(c.Where, func(w Where) bool { return !w.matches(body) })
}

// redrive says what a redrive does with a letter: outcomeChosen, or why it stays.
func (c *chooser) redrive(l *facts, body []byte) outcome {
	switch {
	case l.run != "" && l.run == c.run: // moved by this very run and dead again
		return outcomeAgain
	case c.wave != nil:
		return c.wave.choose(l) // whatever else is asked has been asked by the plan
	case !c.matches(l, body):
		return outcomeUnmatched
	case l.misrouted(c.names):
		return outcomeOtherOrigin
	case l.redrives >= MaxRedrives && !c.includeRepeaters:
		return outcomeRepeater
	}
	return outcomeChosen
}

// discard says what a discard does with a letter.
func (c *chooser) discard(l *facts, body []byte) outcome {
	if c.matches(l, body) {
		return outcomeChosen
	}
	return outcomeUnmatched
}

// detail is the filter as the audit keeps it.
func (f Filter) detail() map[string]any {
	d := map[string]any{}
	put := func(name, value string) {
		if value != "" {
			d[name] = value
		}
	}
	put("type", f.Type)
	put("error_class", f.ErrorClass)
	put("error_contains", f.ErrorContains)
	put("fingerprint", f.Fingerprint)
	if len(f.Where) > 0 {
		where := make([]string, len(f.Where))
		for i, w := range f.Where {
			where[i] = w.String()
		}
		d["where"] = where
	}
	if !f.Since.IsZero() {
		d["since"] = f.Since.UTC().Format(time.RFC3339Nano)
	}
	if len(f.IDs) > 0 {
		d["ids"] = f.IDs[:min(len(f.IDs), 100)]
		d["id_count"] = len(f.IDs)
	}
	return d
}
