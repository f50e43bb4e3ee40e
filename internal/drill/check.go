package drill

import (
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Check is what must be true of a figure of an arm.
type Check struct {
	Arm string
	// Figure that is looked at.
	Figure string
	// Want is what it must be.
	Want Want
}

// Want is a condition with its text.
type Want struct {
	Text  string
	holds func(v any) bool
	// other is a figure of the same arm that it must equal; empty: none.
	other string
}

// CheckResult is a check that was made.
type CheckResult struct {
	Arm      string `json:"arm"`
	Figure   string `json:"figure"`
	Expected string `json:"expected"`
	Observed string `json:"observed"`
	Holds    bool   `json:"holds"`
}

// notObserved is the text of a figure that an arm owes.
const notObserved = "not observed"

// judge holds the checks of arm as against the figures; what was not observed does not hold.
func judge(checks []Check, arm string, figures []Figure) []CheckResult {
	var results []CheckResult
	for _, c := range checks {
		if c.Arm != arm {
			continue
		}
		r := CheckResult{Arm: c.Arm, Figure: c.Figure, Expected: c.Want.Text, Observed: notObserved}
		for _, f := range figures {
			if f.Name == c.Figure {
				r.Observed, r.Holds = f.Text(), c.Want.met(f.Value, figures)
			}
		}
		results = append(results, r)
	}
	return results
}

func (w Want) met(v any, figures []Figure) bool {
	if w.other == "" {
		return w.holds(v)
	}
	for _, f := range figures {
		if f.Name == w.other {
			return reflect.DeepEqual(v, f.Value)
		}
	}
	return false
}

// equalFigure is met by what another figure of the arm is.
func equalFigure(name string) Want { return Want{Text: "as many as " + name, other: name} }

// expect makes the checks of an arm out of figures and what they must be, in pairs.
func expect(arm string, pairs ...any) []Check {
	var checks []Check
	for i := 0; i < len(pairs); i += 2 {
		want, is := pairs[i+1].(Want)
		if !is {
			want = equal(pairs[i+1])
		}
		checks = append(checks, Check{Arm: arm, Figure: pairs[i].(string), Want: want})
	}
	return checks
}

func equal(want any) Want {
	return Want{Text: valueText(want), holds: func(v any) bool { return reflect.DeepEqual(v, want) }}
}

func atLeast(want any) Want {
	return Want{Text: ">= " + valueText(want), holds: func(v any) bool { return number(v) >= number(want) }}
}

func atMost(want any) Want {
	return Want{Text: "<= " + valueText(want), holds: func(v any) bool { return number(v) <= number(want) }}
}

func moreThan(want any) Want {
	return Want{Text: "> " + valueText(want), holds: func(v any) bool { return number(v) > number(want) }}
}

func lessThan(want any) Want {
	return Want{Text: "< " + valueText(want), holds: func(v any) bool { return number(v) < number(want) }}
}

func between(low, high any) Want {
	return Want{Text: valueText(low) + " to " + valueText(high), holds: func(v any) bool { return number(v) >= number(low) && number(v) <= number(high) }}
}

// containing is for texts.
func containing(part string) Want {
	return Want{Text: "contains " + strconv.Quote(part), holds: func(v any) bool { s, ok := v.(string); return ok && strings.Contains(s, part) }}
}

// number makes figures comparable. What is none is compared with nothing: NaN.
func number(v any) float64 {
	switch v := v.(type) {
	case int:
		return float64(v)
	case float64:
		return v
	case time.Duration:
		return float64(v)
	}
	return math.NaN()
}

// Figure is what an arm observed.
type Figure struct {
	Name string
	// Value is an int, float64, bool, string, time.Duration, or a slice of these.
	Value any
}

// Text is the value for people.
func (f Figure) Text() string { return valueText(f.Value) }

func valueText(v any) string {
	switch v := v.(type) {
	case time.Duration:
		return durationText(v)
	case float64:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case []int:
		return strings.Trim(fmt.Sprint(v), "[]")
	case []string:
		return strings.Join(v, ", ")
	}
	return fmt.Sprint(v)
}

// durationText keeps three digits or so.
func durationText(d time.Duration) string {
	switch {
	case d.Abs() >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d.Abs() >= time.Millisecond:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Microsecond).String()
}
