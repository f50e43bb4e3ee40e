package console

import (
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/internal/escape"
)

// Bounds of texts on a page, in bytes.
const (
	maxCell  = 120
	maxLine  = 400
	maxBlock = 64 << 10
)

// cell, line and block ("lines" in templates) make text from messages fit for a page, see package escape.
func cell(v any) string { return escape.Line(fmt.Sprint(v), maxCell) }

func line(v any) string { return escape.Line(fmt.Sprint(v), maxLine) }

func block(v any) string { return escape.Block(fmt.Sprint(v), maxBlock) }

// number groups digits by thousands.
func number(n any) string {
	text := fmt.Sprint(n)
	if strings.ContainsAny(text, ".e") {
		return text
	}
	digits := strings.TrimPrefix(text, "-")
	var out strings.Builder
	out.WriteString(text[:len(text)-len(digits)])
	for i, d := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			out.WriteByte(',')
		}
		out.WriteRune(d)
	}
	return out.String()
}

// counted is a number with its thing.
func counted(n any, thing string) string {
	text := number(n)
	if text != "1" {
		thing += "s"
	}
	return text + " " + thing
}

// short writes a figure of a plot or a card: 0, 0.4, 12, 1.2k.
func short(v float64) string {
	switch {
	case math.IsNaN(v):
		return "–"
	case v >= 1e6:
		return trimmed(v/1e6) + "M"
	case v >= 1e4:
		return trimmed(v/1e3) + "k"
	}
	return trimmed(v)
}

func trimmed(v float64) string {
	if v >= 100 || v == math.Trunc(v) {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'f', 1, 64)
}

func perSecond(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	return short(v) + "/s"
}

// seconds writes an age that is a number of seconds.
func seconds(v float64) string {
	if math.IsNaN(v) {
		return "–"
	}
	if v > 0 && v < 1 {
		return strconv.FormatFloat(v, 'f', 1, 64) + " s"
	}
	return span(time.Duration(v * float64(time.Second)))
}

// span writes a duration in its largest unit, and the next one where that tells something.
func span(d time.Duration) string {
	d = max(d, 0)
	two := func(whole time.Duration, unit string, part time.Duration, small string) string {
		text := fmt.Sprintf("%d %s", d/whole, unit)
		if rest := d % whole / part; rest > 0 && d/whole < 10 {
			text += fmt.Sprintf(" %d %s", rest, small)
		}
		return text
	}
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return two(time.Minute, "min", time.Second, "s")
	case d < 48*time.Hour:
		return two(time.Hour, "h", time.Minute, "min")
	}
	return two(24*time.Hour, "d", time.Hour, "h")
}

// moment is a time as the template "time" shows it.
type moment struct {
	Known         bool
	ISO, Abs, Ago string
}

// at takes a time.Time, a *time.Time, or what holds one and has UTC, such as message.Stamp.
func at(v any) moment {
	var t time.Time
	switch v := v.(type) {
	case time.Time:
		t = v
	case *time.Time:
		if v != nil {
			t = *v
		}
	case interface{ UTC() time.Time }:
		t = v.UTC()
	}
	if t.IsZero() || t.Year() > 9999 || t.Year() < 1 {
		return moment{}
	}
	t = t.UTC()
	m := moment{Known: true, ISO: t.Format(time.RFC3339), Abs: t.Format("2006-01-02 15:04:05") + " UTC"}
	switch age := time.Since(t); {
	case age < -2*time.Second:
		m.Ago = "in " + span(-age)
	case age < 2*time.Second:
		m.Ago = "just now"
	default:
		m.Ago = span(age) + " ago"
	}
	return m
}

// link makes an address of a path and parameters; empty ones are left out.
func link(path string, pairs ...any) string {
	query := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := fmt.Sprint(pairs[i+1]); value != "" {
			query.Add(fmt.Sprint(pairs[i]), value)
		}
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}
