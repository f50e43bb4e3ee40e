package drill

import (
	"context"
	"strings"
	"time"
)

// Played is what an arm observed, without a verdict.
type Played struct {
	Report  ArmReport
	figures []Figure
}

// Play plays one arm with its drill's defaults.
func Play(ctx context.Context, o Options, d Drill, arm string) (Played, error) {
	r, err := New(o)
	if err != nil {
		return Played{}, err
	}
	if err := r.open(ctx); err != nil {
		return Played{}, err
	}
	defer r.close(ctx)
	set, err := d.settings(o.Set, r.seed)
	if err != nil {
		return Played{}, err
	}
	for _, a := range d.Arms {
		if a.Name == arm {
			report, figures := r.play(ctx, d, a, set)
			return Played{report, figures}, nil
		}
	}
	panic("no arm " + arm)
}

// Under holds what one arm observed against the checks of another.
func (p Played) Under(d Drill, arm string) []CheckResult {
	set, _ := d.settings(nil, 1)
	return judge(d.Checks(set), arm, p.figures)
}

// NotObserved is the text of a figure that an arm owes.
const NotObserved = notObserved

// ValueText is a value for people.
func ValueText(v any) string { return valueText(v) }

// Recorded is what promtool would be given of a series: texts are what a target answered step by step from second 1,000,000,000 on,
// "" being a scrape that failed and "-" none.
func Recorded(series string, texts ...string) string {
	r := record(series)
	r.began = time.Unix(1_000_000_000, 0)
	at := make([]*scrape, len(texts))
	for i, text := range texts {
		if text == "-" {
			continue
		}
		at[i] = &scrape{}
		if text != "" {
			at[i].values, _ = r.read(strings.NewReader(text), "")
		}
	}
	return r.values(series, at)
}

// Labelled is labelled for tests.
func Labelled(series, instance string) string { return labelled(series, instance) }

// Program is what is run for a tool.
var Program = program //nolint:gochecknoglobals // a function
