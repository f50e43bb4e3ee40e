package bench

import "time"

// ParseStat is parseStat for tests.
func ParseStat(text string) (parent int, own, reaped time.Duration, ok bool) {
	s, ok := parseStat(text)
	return s.parent, s.own, s.reaped, ok
}

// Reading is the CPU of PostgreSQL and the broker in microseconds, nil where it is unknown.
type Reading = reading

// Postgres and Broker of a reading.
func (r reading) Postgres() *float64 { return r.postgres }

// Broker of a reading.
func (r reading) Broker() *float64 { return r.broker }

// NewMeter is newMeter for tests.
var NewMeter = newMeter

// Read is read for tests.
func (m *meter) Read() Reading { return m.read() }

// Came notes messages in the order given, and returns how many were distinct, repeated and out of order.
func Came(messages ...[2]string) (distinct, repeated, disordered int, foreign string) {
	b := newBook()
	for _, m := range messages {
		b.note(m[0], m[1])
	}
	return b.distinct, b.repeated, b.disordered, b.foreign
}

// Figure is figure for tests.
func (r *Report) Figure(name, unit string, values []float64, goal *Goal) {
	r.figure(name, unit, values, goal)
}

// Ratios is ratios for tests.
func (r *Report) Ratios(name, by string) []float64 { return r.ratios(Rate, name, by) }
