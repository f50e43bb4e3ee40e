package drill

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pause"
)

const (
	// gameStep is the time between two scrapes, and gameMinute what it stands for: one second of the drill is five minutes.
	gameStep   = 200 * time.Millisecond
	gameMinute = time.Minute
	gameScale  = float64(gameMinute / gameStep)

	scrapeLimit = 2 * time.Second
	mostScraped = 16 << 20
)

// recording is what was scraped since it began. Safe for concurrent use.
type recording struct {
	began time.Time
	names map[string]bool // of the metrics that are kept

	mu      sync.Mutex
	targets map[string][]scrape // by instance, in order
}

// scrape is one answer of a target; without values it was down.
type scrape struct {
	at     time.Duration // since the recording began
	values map[string]float64
}

var identifier = regexp.MustCompile(`[a-zA-Z_:][a-zA-Z0-9_:]*`)

// record begins; kept is what the rules could ask for.
func record(rules string) *recording {
	r := &recording{began: time.Now(), names: map[string]bool{}, targets: map[string][]scrape{}}
	for _, name := range identifier.FindAllString(rules, -1) {
		r.names[name] = true
	}
	return r
}

// scrape asks a target again and again until the arm ends. Lines that do not contain part are left out.
func (s *stage) scrape(ctx context.Context, r *recording, client *http.Client, instance, url, part string) {
	s.background(ctx, func(ctx context.Context) error {
		for next := time.Now(); ; next = next.Add(gameStep) {
			if !pause.For(ctx, time.Until(next)) {
				return nil
			}
			values, err := r.ask(ctx, client, url, part)
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the arm has ended
			}
			if err != nil {
				values = nil // it is down, as it is for Prometheus
			}
			r.note(instance, values)
		}
	})
}

func (r *recording) note(instance string, values map[string]float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.targets[instance] = append(r.targets[instance], scrape{time.Since(r.began), values})
}

func (r *recording) ask(ctx context.Context, client *http.Client, url, part string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics answer %s", response.Status)
	}
	return r.read(io.LimitReader(response.Body, mostScraped), part)
}

// read reads the text format.
func (r *recording) read(text io.Reader, part string) (map[string]float64, error) {
	values := map[string]float64{}
	lines := bufio.NewScanner(text)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		series, text, found := cutLast(lines.Text(), " ")
		if !found || strings.HasPrefix(series, "#") || !r.names[metricName(series)] || !strings.Contains(series, part) {
			continue
		}
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			values[series] = value
		}
	}
	return values, lines.Err()
}

func cutLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

func metricName(series string) string {
	name, _, _ := strings.Cut(series, "{")
	return name
}

// has says whether the last scrape of a target has a series for which is holds.
func (r *recording) has(instance, metric, part string, is func(v float64) bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.targets[instance]
	if len(all) == 0 {
		return false
	}
	for series, value := range all[len(all)-1].values {
		if metricName(series) == metric && strings.Contains(series, part) && is(value) {
			return true
		}
	}
	return false
}

// inputSeries is a series of promtool's tests.
type inputSeries struct {
	Series string `json:"series"`
	Values string `json:"values"`
}

// series are what was recorded, one value for each minute that the steps stand for: what Prometheus would have stored.
func (r *recording) series() (all []inputSeries, minutes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	minutes = int(time.Since(r.began) / gameStep)
	for instance, scrapes := range r.targets {
		at := make([]*scrape, minutes+1)
		names := map[string]bool{}
		for i := range scrapes {
			at[min(int(scrapes[i].at/gameStep), minutes)] = &scrapes[i]
			for series := range scrapes[i].values {
				names[series] = true
			}
		}
		for series := range names {
			all = append(all, inputSeries{labelled(series, instance), r.values(series, at)})
		}
	}
	return all, minutes
}

// values writes a series down. Where there was no scrape in time, the one before it counts, as it does for Prometheus.
func (r *recording) values(series string, at []*scrape) string {
	var out []string
	there := false
	for _, one := range at {
		if one == nil {
			out = append(out, "_")
			continue
		}
		value, has := one.values[series]
		switch {
		case has:
			out = append(out, strconv.FormatFloat(r.scaled(metricName(series), value), 'f', -1, 64))
		case there:
			out = append(out, "stale")
		default:
			out = append(out, "_")
		}
		there = has
	}
	return strings.Join(out, " ")
}

// scaled makes times as much longer as the steps are shorter than what they stand for.
func (r *recording) scaled(name string, value float64) float64 {
	switch {
	case strings.HasSuffix(name, "_timestamp_seconds"), name == "process_start_time_seconds":
		return (value - float64(r.began.UnixMilli())/1000) * gameScale
	case strings.HasSuffix(name, "_seconds"):
		return value * gameScale
	}
	return value
}

// labelled adds what Prometheus adds.
func labelled(series, instance string) string {
	name, labels, _ := strings.Cut(series, "{")
	own := fmt.Sprintf(`{job="surefoot",instance=%q`, instance)
	if labels == "" || labels == "}" {
		return name + own + "}"
	}
	return name + own + "," + labels
}
