package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Bench is one benchmark. Make one with [New]; it runs once at a time.
type Bench struct{ o Options }

// New checks the options and names every fault. It does no I/O.
func New(o Options) (*Bench, error) {
	o = o.withDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &Bench{o}, nil
}

// cleanLimit bounds dropping what a run has made, also after an interrupt.
const cleanLimit = time.Minute

// Run measures. An error means that there is no report: a service is away, an arm failed, or what arrived is not what was
// sent. Everything that was made is dropped again, and every process has ended, when it returns.
func (b *Bench) Run(ctx context.Context) (report *Report, err error) {
	began := time.Now()
	s, err := openStage(ctx, b.o)
	if err != nil {
		return nil, err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
		defer cancel()
		if failed := s.close(clean); failed != nil {
			err = errors.Join(err, fmt.Errorf("clean up %s*: %w", b.o.Namespace, failed))
		}
	}()
	measure := map[Kind]func(context.Context, *stage, *Report) error{
		Relay: b.relay, Consume: b.consume, Redrive: b.redrive, Latency: b.latency, Enqueue: b.enqueue, Worker: b.worker,
	}
	report = &Report{Kind: b.o.Kind, Machine: s.machine}
	if err := measure[b.o.Kind](ctx, s, report); err != nil {
		return nil, err
	}
	report.Seconds = time.Since(began).Seconds()
	return report, nil
}
