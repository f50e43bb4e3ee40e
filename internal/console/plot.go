package console

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Size of a plot in its own units, and the time that it shows.
const (
	plotWidth, plotHeight = 600.0, 120.0
	plotSpan              = time.Hour
)

type plotPoint struct {
	at    time.Time
	value float64
}

// plotLine is one figure of a plot. Class 1 to 3 tells the lines apart, by dashes as well as by colour.
type plotLine struct {
	Name  string
	Class int
	Path  string
	Now   string
}

// plot is a drawing of some figures over the last hour.
type plot struct {
	ID, Title string
	Lines     []plotLine
	Top, Half string
	Since     time.Time
	Empty     bool
	Said      string // in words, for whoever does not see it
}

// figure is what goes into a plot.
type figure struct {
	name string
	of   func(*sample) float64
}

// draw makes a plot. show writes a value with its unit.
func (h *history) draw(now time.Time, id, title string, ages bool, show func(float64) string, figures ...figure) plot {
	p := plot{ID: id, Title: title, Empty: true, Said: title + " over the last hour."}
	lines := make([][]plotPoint, len(figures))
	highest := 0.0
	for i, f := range figures {
		lines[i] = h.line(f.of)
		for _, point := range lines[i] {
			if !math.IsNaN(point.value) {
				highest, p.Empty = max(highest, point.value), false
			}
		}
		if len(lines[i]) > 0 && p.Since.IsZero() {
			p.Since = lines[i][0].at
		}
	}
	top := niceTop(highest)
	if ages {
		top = niceAge(highest)
	}
	p.Top, p.Half = show(top), show(top/2)
	for i, f := range figures {
		line := plotLine{Name: f.name, Class: i + 1, Path: drawn(lines[i], now, top), Now: "not known"}
		if last := h.lately(f.of); !math.IsNaN(last) {
			line.Now = show(last)
		}
		p.Lines = append(p.Lines, line)
		p.Said += " " + f.name + ": now " + line.Now + "."
	}
	p.Said += " Highest: " + show(highest) + "."
	return p
}

// drawn is a line with gaps where nothing is known. A single sample becomes a short stroke.
func drawn(points []plotPoint, now time.Time, top float64) string {
	var out strings.Builder
	pen := "M"
	var last time.Time
	for _, p := range points {
		age := now.Sub(p.at)
		if math.IsNaN(p.value) || age > plotSpan || age < 0 {
			pen = "M"
			continue
		}
		if !last.IsZero() && p.at.Sub(last) > 4*historyStep {
			pen = "M"
		}
		x, y := plotWidth*(1-age.Seconds()/plotSpan.Seconds()), plotHeight*(1-p.value/top)
		fmt.Fprintf(&out, "%s%.1f %.1f", pen, x, y)
		if pen == "M" {
			out.WriteString("h.5")
		}
		pen, last = "L", p.at
	}
	return out.String()
}

// niceTop is the next round number, so that a scale does not change with every sample.
func niceTop(highest float64) float64 {
	if highest <= 1 {
		return 1
	}
	size := math.Pow(10, math.Floor(math.Log10(highest)))
	for _, step := range []float64{1, 2, 5, 10} {
		if highest <= step*size {
			return step * size
		}
	}
	return 10 * size
}

// niceAge is the next round age, in seconds.
func niceAge(highest float64) float64 {
	const minute, hour, day = 60, 3600, 86400
	for _, top := range []float64{1, 2, 10, 30, minute, 2 * minute, 10 * minute, 30 * minute, hour, 2 * hour, 6 * hour, 12 * hour, day, 2 * day, 4 * day, 10 * day, 30 * day} {
		if highest <= top {
			return top
		}
	}
	return 100 * day * math.Ceil(highest/(100*day))
}
