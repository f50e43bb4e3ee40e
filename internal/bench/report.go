package bench

import (
	"math"
	"slices"
)

// Report is what a benchmark found.
type Report struct {
	Kind    Kind    `json:"bench"`
	Load    Load    `json:"load"`
	Machine Machine `json:"machine"`
	// Arms in the order of their names in the figures.
	Arms []Arm `json:"arms"`
	// Figures are ratios between arms, and amounts that have a goal.
	Figures []Figure `json:"figures"`
	Seconds float64  `json:"seconds"`
}

// Load is what the arms had to do.
type Load struct {
	Rows        int    `json:"rows,omitempty"`
	Bytes       int    `json:"bytes"`
	Keys        int    `json:"keys,omitempty"`
	Connections int    `json:"connections,omitempty"`
	Prefetch    int    `json:"prefetch,omitempty"`
	Workers     int    `json:"workers,omitempty"`
	Rounds      int    `json:"rounds"`
	Held        Held   `json:"held,omitempty"`
	Backlog     int    `json:"backlog,omitempty"`
	Rate        int    `json:"rate,omitempty"`
	For         string `json:"for,omitempty"`
}

// Machine is what the figures depend on.
type Machine struct {
	System   string `json:"system"`
	CPUs     int    `json:"cpus"`
	Memory   int    `json:"memory_mib,omitempty"`
	Postgres string `json:"postgresql"`
	Broker   string `json:"rabbitmq"`
	// Settings of PostgreSQL that decide what a commit costs.
	Settings string `json:"postgresql_settings"`
}

// Arm is one of the things compared.
type Arm struct {
	Name    string   `json:"name"`
	Samples []Sample `json:"rounds"`
}

// Sample is one run of an arm. What could not be measured is missing.
type Sample struct {
	Round int `json:"round"`
	// Rows that were done: confirmed and settled, or handled.
	Rows    int     `json:"rows"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"rows_per_second"`
	// CPU per row in microseconds: of the arm's own process, PostgreSQL's and the broker's.
	CPU      *float64 `json:"cpu_us,omitempty"`
	Postgres *float64 `json:"postgresql_cpu_us,omitempty"`
	Broker   *float64 `json:"rabbitmq_cpu_us,omitempty"`
	// Memory is the process's largest resident size in MiB.
	Memory *float64 `json:"peak_mib,omitempty"`
	// P50 and P99 in milliseconds.
	P50 *float64 `json:"p50_ms,omitempty"`
	P99 *float64 `json:"p99_ms,omitempty"`
	// Disordered counts rows that came after a later one of their key.
	Disordered int `json:"out_of_order,omitempty"`
	// Repeated counts messages that came more than once.
	Repeated int `json:"repeated,omitempty"`
}

// Spread is the median of several values, with the lowest and the highest.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spread returns false when there are no values.
func spread(values []float64) (Spread, bool) {
	if len(values) == 0 {
		return Spread{}, false
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	median := sorted[middle]
	if len(sorted)%2 == 0 {
		median = (sorted[middle-1] + sorted[middle]) / 2
	}
	return Spread{Median: median, Min: sorted[0], Max: sorted[len(sorted)-1]}, true
}

// Of returns the spread of one measure over the arm's rounds, false when it was not measured.
func (a Arm) Of(measure func(Sample) *float64) (Spread, bool) {
	var values []float64
	for _, s := range a.Samples {
		if v := measure(s); v != nil {
			values = append(values, *v)
		}
	}
	return spread(values)
}

// Figure is a result with its goal.
type Figure struct {
	Name string `json:"name"`
	Unit string `json:"unit,omitempty"` // empty: a ratio
	Spread
	// Goal is nil where there is none.
	Goal *Goal `json:"goal,omitempty"`
	// Met is whether the median reaches the goal; nil without one.
	Met *bool `json:"met,omitempty"`
}

// Goal bounds a figure.
type Goal struct {
	// AtMost tells that less is better.
	AtMost bool    `json:"at_most"`
	Value  float64 `json:"value"`
}

func atLeast(v float64) *Goal { return &Goal{Value: v} }
func atMost(v float64) *Goal  { return &Goal{AtMost: true, Value: v} }

// reached says whether v meets the goal relaxed by share: 1 is the goal itself, 0.5 half of it.
func (g Goal) reached(v, share float64) bool {
	if g.AtMost {
		return v <= g.Value/share
	}
	return v >= g.Value*share
}

// Below returns the ratios that miss even this share of their goal. Amounts are left out: they depend on the machine.
func (r *Report) Below(share float64) (missed []Figure) {
	for _, f := range r.Figures {
		if f.Goal != nil && f.Unit == "" && !f.Goal.reached(f.Median, share) {
			missed = append(missed, f)
		}
	}
	return missed
}

// figure adds a result, unless there are no values.
func (r *Report) figure(name, unit string, values []float64, goal *Goal) {
	s, ok := spread(values)
	if !ok {
		return
	}
	f := Figure{Name: name, Unit: unit, Spread: s, Goal: goal}
	if goal != nil {
		met := goal.reached(s.Median, 1)
		f.Met = &met
	}
	r.Figures = append(r.Figures, f)
}

// arm returns the samples of an arm by round; none when it did not run.
func (r *Report) arm(name string) map[int]Sample {
	samples := map[int]Sample{}
	for _, a := range r.Arms {
		if a.Name == name {
			for _, s := range a.Samples {
				samples[s.Round] = s
			}
		}
	}
	return samples
}

// ratios are, round by round, a measure of one arm by that of another.
func (r *Report) ratios(measure func(Sample) *float64, name, by string) (values []float64) {
	over := r.arm(by)
	for round, s := range r.arm(name) {
		above, below := measure(s), measure(over[round])
		if above != nil && below != nil && *below > 0 {
			values = append(values, *above / *below)
		}
	}
	return values
}

// amounts are one measure of an arm in all rounds.
func (r *Report) amounts(measure func(Sample) *float64, name string) (values []float64) {
	for _, s := range r.arm(name) {
		if v := measure(s); v != nil {
			values = append(values, *v)
		}
	}
	return values
}

// compare adds the ratio of two arms' rates, if both ran.
func (r *Report) compare(name, by string, goal *Goal) {
	r.figure(name+" / "+by, "", r.ratios(Rate, name, by), goal)
}

// The measures of a sample.

// Rate is rows per second.
func Rate(s Sample) *float64 {
	if s.Seconds == 0 {
		return nil
	}
	return &s.Rate
}

// CPU is that of the arm's process.
func CPU(s Sample) *float64 { return s.CPU }

// PostgresCPU is that of all of PostgreSQL's processes.
func PostgresCPU(s Sample) *float64 { return s.Postgres }

// BrokerCPU is that of RabbitMQ.
func BrokerCPU(s Sample) *float64 { return s.Broker }

// Memory is the peak of the arm's process.
func Memory(s Sample) *float64 { return s.Memory }

// P50 is the median latency.
func P50(s Sample) *float64 { return s.P50 }

// P99 is the latency that one in a hundred exceeds.
func P99(s Sample) *float64 { return s.P99 }

// spent enters what a process that has ended, and the services meanwhile, have used for rows.
func (s *Sample) spent(p *process, used reading, rows int) {
	s.CPU, s.Memory = perRow(p.cpu(), rows), p.memory()
	s.Postgres, s.Broker = perRow(used.postgres, rows), perRow(used.broker, rows)
}

// perRow turns a total of microseconds into that of one row, nil when it is unknown.
func perRow(us *float64, rows int) *float64 {
	if us == nil || rows == 0 {
		return nil
	}
	each := math.Max(*us, 0) / float64(rows)
	return &each
}
