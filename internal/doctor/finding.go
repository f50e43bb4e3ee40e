package doctor

import (
	"cmp"
	"slices"
)

// Severity of a finding.
type Severity string

// The severities, worst first.
const (
	// Critical: messages or effects can be lost, or something does not work at all.
	Critical Severity = "critical"
	// Warning: it works, but not always, or not for ever.
	Warning Severity = "warning"
	// Unknown: it could not be looked at.
	Unknown Severity = "unknown"
	// OK: nothing to mend; Found says what was seen.
	OK Severity = "ok"
)

// Finding is what a check has found about one thing.
type Finding struct {
	Severity Severity `json:"severity"`
	// Check that found it.
	Check string `json:"check"`
	// About is the thing: a queue, a table, a key of the configuration.
	About string `json:"about"`
	// Found is what was seen.
	Found string `json:"found"`
	// Meaning is what comes of it; empty when that is nothing.
	Meaning string `json:"meaning"`
	// Mend is what to do; empty when that is nothing.
	Mend string `json:"mend"`

	// OutOfReach: it is unknown because a service does not answer.
	OutOfReach bool `json:"-"`
}

func ok(about, found string) Finding { return Finding{Severity: OK, About: about, Found: found} }

// sorted puts the worst first; among equals the order of the checks stays.
func sorted(all []Finding) []Finding {
	order := []Severity{Critical, Warning, Unknown, OK}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Compare(slices.Index(order, a.Severity), slices.Index(order, b.Severity))
	})
	return all
}
