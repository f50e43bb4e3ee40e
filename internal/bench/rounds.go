package bench

import (
	"context"
	"fmt"
	"strings"
)

// turn is one arm's part in a round.
type turn struct {
	name string
	run  func(ctx context.Context, round int) (Sample, error)
}

// take lets all arms have their turns in every round, each round beginning with another arm.
func (s *stage) take(ctx context.Context, report *Report, turns []turn, after func(ctx context.Context, round int) error) error {
	report.Arms = make([]Arm, len(turns))
	for i, t := range turns {
		report.Arms[i].Name = t.name
	}
	for round := 1; round <= s.o.Rounds; round++ {
		for i := range turns {
			at := (i + round - 1) % len(turns)
			sample, err := turns[at].run(ctx, round)
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", round, turns[at].name, err)
			}
			report.Arms[at].Samples = append(report.Arms[at].Samples, sample)
			s.say("round %d of %d  %-16s %s", round, s.o.Rounds, turns[at].name, sample)
		}
		if after != nil {
			if err := after(ctx, round); err != nil {
				return err
			}
		}
	}
	return nil
}

// String is a line for a person.
func (s Sample) String() string {
	var parts []string
	add := func(format string, v *float64) {
		if v != nil {
			parts = append(parts, fmt.Sprintf(format, *v))
		}
	}
	add("%.0f/s", Rate(s))
	add("CPU %.1f us", s.CPU)
	add("PostgreSQL %.1f us", s.Postgres)
	add("RabbitMQ %.1f us", s.Broker)
	add("peak %.0f MiB", s.Memory)
	add("p50 %.2f ms", s.P50)
	add("p99 %.2f ms", s.P99)
	return strings.Join(parts, ", ")
}
