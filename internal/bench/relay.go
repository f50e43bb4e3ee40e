package bench

import (
	"context"
	"errors"
	"fmt"
)

// Goals of the relay's figures.
const (
	goalCPU      = 12.0 // us per message
	goalPostgres = 18.0
	goalMemory   = 64.0 // MiB
)

// against are the goals of the relay's rate by that of another arm.
var against = map[string]float64{"bare publisher": 0.8, "textbook": 1.5, orderedTextbook: 1.5, "river": 3, "watermill": 8}

func (b *Bench) relay(ctx context.Context, s *stage, r *Report) error {
	r.Load = Load{
		Rows: b.o.Rows, Bytes: b.o.Bytes, Keys: b.o.Keys, Connections: b.o.Connections, Rounds: b.o.Rounds,
		Held: b.o.Held, Backlog: b.o.Backlog, Rate: b.o.Steady,
	}
	switch {
	case b.o.Held != HeldNothing:
		return s.drainHeld(ctx, r)
	case b.o.Backlog > 0:
		return s.drainBacklog(ctx, r)
	case b.o.Steady > 0:
		return s.steady(ctx, r)
	}
	return s.drainAll(ctx, r)
}

// drainAll drains fresh tables with every system.
func (s *stage) drainAll(ctx context.Context, r *Report) error {
	systems := s.systems()
	if s.o.Peers != "" {
		systems = append(systems, s.ordered())
	}
	turns := make([]turn, len(systems))
	for i, sys := range systems {
		turns[i] = turn{sys.name, func(ctx context.Context, round int) (Sample, error) { return s.drainFresh(ctx, sys, round) }}
	}
	if err := s.take(ctx, r, turns, nil); err != nil {
		return err
	}
	for _, sys := range systems {
		if sys.name != "relay" {
			r.compare("relay", sys.name, atLeast(against[sys.name]))
		}
	}
	r.figure("relay CPU per message", "us", r.amounts(CPU, "relay"), atMost(goalCPU))
	r.figure("PostgreSQL CPU per message, relay", "us", r.amounts(PostgresCPU, "relay"), atMost(goalPostgres))
	r.figure("RabbitMQ CPU per message, relay", "us", r.amounts(BrokerCPU, "relay"), nil)
	r.figure("RabbitMQ CPU per message, bare publisher", "us", r.amounts(BrokerCPU, "bare publisher"), nil)
	r.figure("relay peak memory", "MiB", r.amounts(Memory, "relay"), atMost(goalMemory))
	return nil
}

// drainFresh is one run on fresh tables.
func (s *stage) drainFresh(ctx context.Context, sys system, round int) (sample Sample, err error) {
	t, err := s.newTables(ctx, sys, "arm")
	if err != nil {
		return sample, err
	}
	if err := t.top(ctx, s.o.Rows); err != nil {
		return sample, err
	}
	sample, err = s.drain(ctx, t, round)
	if sys.name == orderedTextbook && sample.Disordered > 0 {
		err = errors.Join(err, fmt.Errorf("%s: %d messages out of order", sys.name, sample.Disordered))
	}
	return sample, err
}

// drainBacklog compares the rate on a table where Backlog rows wait, made once and filled up before each window, with that on
// a fresh table of Rows.
func (s *stage) drainBacklog(ctx context.Context, r *Report) error {
	var turns []turn
	var names []string
	for _, sys := range s.systems()[1:] {
		s.say("filling     %s: %d rows", sys.name, s.o.Backlog)
		deep, err := s.newTables(ctx, sys, sys.name+"_deep")
		if err != nil {
			return err
		}
		if err := deep.top(ctx, s.o.Backlog); err != nil {
			return err
		}
		names = append(names, sys.name)
		turns = append(turns,
			turn{sys.name, func(ctx context.Context, round int) (Sample, error) { return s.drainFresh(ctx, sys, round) }},
			turn{sys.name + " with backlog", func(ctx context.Context, round int) (Sample, error) {
				if err := deep.top(ctx, s.o.Backlog); err != nil {
					return Sample{}, err
				}
				return s.drain(ctx, deep, round)
			}})
	}
	if err := s.take(ctx, r, turns, nil); err != nil {
		return err
	}
	for _, name := range names {
		var rate, cpu *Goal
		if name == "relay" {
			rate, cpu = atLeast(0.75), atMost(2)
		}
		deep := name + " with backlog"
		r.figure(fmt.Sprintf("%s / %s", deep, name), "", r.ratios(Rate, deep, name), rate)
		r.figure(fmt.Sprintf("PostgreSQL CPU, %s / %s", deep, name), "", r.ratios(PostgresCPU, deep, name), cpu)
	}
	r.figure("relay peak memory with backlog", "MiB", r.amounts(Memory, "relay with backlog"), atMost(goalMemory))
	return nil
}
