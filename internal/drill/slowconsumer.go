package drill

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/child"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

func slowConsumer() Drill {
	return Drill{
		Name: "slow-consumer", Section: SectionQueues,
		Proves: "a slow consumer holds no more than its prefetch; the rest waits in the queue, and its memory stays flat",
		Settings: []Setting{
			count("messages", 1000, 100, 20_000, "messages that wait"),
			count("kib", 32, 1, 1024, "size of each, in KiB"),
			count("prefetch", 10, 1, 100, "most that are held"),
			length("takes", 50*time.Millisecond, 10*time.Millisecond, 5*time.Second, "time of a handler"),
			length("watch", 2*time.Second, time.Second, time.Minute, "how long its process is watched"),
		},
		Arms: []Arm{
			{Name: Before, Does: "takes whatever the broker sends", play: func(ctx context.Context, s *stage) error { return slow(ctx, s, roleHoarder) }},
			{Name: After, Does: "prefetch", play: func(ctx context.Context, s *stage) error { return slow(ctx, s, roleWorker) }},
		},
		checks: func(s Settings) []Check {
			n, size := s.Int("messages"), s.Int("messages")*s.Int("kib")/1024
			return append(
				expect(Before, "held_most", moreThan(s.Int("prefetch")), "memory_grown_mib", moreThan(size/2)),
				// One more at the start: the first message has a subscription of its own, for it may be what killed the process before.
				expect(After, "held_most", between(1, s.Int("prefetch")+1), "waiting_least", atLeast(n*3/4), "memory_grown_mib", lessThan(max(size/2, 16)), "handled", moreThan(0),
					"lost", 0)...)
		},
	}
}

// roleHoarder takes everything at once.
const roleHoarder = "hoarder"

// actHoarder takes whatever comes and works on it one by one.
func actHoarder(ctx context.Context, o ActOptions) error {
	w, err := newWorker(ctx, o)
	if err != nil {
		return err
	}
	defer w.pool.Close()
	// It stands still while its queue is filled, for as long as a slow machine takes.
	conn, err := rabbit.Dial(ctx, rabbit.Options{URL: o.AMQPURL, TLS: o.TLS, Role: "drill-hoarder", Host: o.Host, Version: o.Version, Heartbeat: time.Minute})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	subscription, err := conn.Consume(ctx, rabbit.ConsumeOptions{Queue: w.task.Queue.Name, Prefetch: 65_535})
	if err != nil {
		return err
	}
	var held []*amqp.Delivery
	next := time.NewTicker(w.task.Takes)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case d, open := <-subscription.Deliveries():
			if !open {
				return subscription.Err()
			}
			held = append(held, d)
		case <-next.C:
			if len(held) == 0 {
				continue
			}
			if err := subscription.Ack(held[0].DeliveryTag, false); err != nil {
				return err
			}
			held = held[1:]
		}
	}
}

// slow fills a queue and watches a process that works on it.
func slow(ctx context.Context, s *stage, role string) error {
	queue := work("drill.work", 3, time.Second)
	queue.Prefetch = s.set.Int("prefetch")
	if err := s.prepare(ctx, queue); err != nil {
		return err
	}
	if err := s.workTables(ctx); err != nil {
		return err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	p, err := s.act(ctx, role, workerTask{Queue: queue, Takes: s.set.Duration("takes")})
	if err != nil {
		return err
	}
	base, err := s.idle(ctx, p, conn, queue.Name)
	if err != nil {
		return err
	}
	n, least, held := s.set.Int("messages"), s.set.Int("messages"), 0
	most := 0
	end := time.Now().Add(s.set.Duration("watch"))
	for time.Now().Before(end) && pause.For(ctx, 50*time.Millisecond) {
		waits, err := ready(ctx, conn, queue.Name)
		if err != nil {
			return err
		}
		handled, err := s.count(ctx, effectsCount) // after the other look: what ends in between is none that is held
		if err != nil {
			return err
		}
		now, err := residentMiB(p.cmd.Process.Pid)
		if err != nil {
			return fmt.Errorf("%w: %s", err, p.out)
		}
		most, least = max(most, now), min(least, waits)
		held = max(held, n-waits-handled)
	}
	s.observe("held_most", held)
	s.observe("waiting_least", least)
	s.observe("memory_grown_mib", max(most-base, 0))
	handled, err := s.count(ctx, effectsCount)
	if err != nil {
		return err
	}
	s.observe("handled", handled)
	p.kill()
	if role == roleHoarder {
		return nil // it writes nothing down
	}
	return s.accountQueue(ctx, conn, queue.Name, n)
}

// idle returns the memory of a consumer that has nothing to do yet, and fills its queue while it stands still: nothing of what it will hold is
// in the base, and it has all of them in front of it at once.
func (s *stage) idle(ctx context.Context, p *process, conn *rabbit.Conn, queue string) (mib int, err error) {
	err = eventually(ctx, 30*time.Second, "the consumer", func(ctx context.Context) (bool, error) {
		_, consumers, err := conn.Inspect(ctx, queue)
		return consumers > 0, err
	})
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, p.out)
	}
	if mib, err = residentMiB(p.cmd.Process.Pid); err != nil {
		return 0, err
	}
	p.signal(syscall.SIGSTOP)
	if err := eventually(ctx, 10*time.Second, "the consumer to stand still", func(context.Context) (bool, error) { return p.stopped(), nil }); err != nil {
		return 0, err
	}
	err = s.fill(ctx, conn, queue)
	p.signal(syscall.SIGCONT)
	return mib, err
}

// accountQueue counts what is neither handled nor waits again, once the broker has taken back what was held.
func (s *stage) accountQueue(ctx context.Context, conn *rabbit.Conn, queue string, n int) error {
	missing := n
	err := eventually(ctx, 10*time.Second, "the broker to take back what was held", func(ctx context.Context) (bool, error) {
		waits, err := ready(ctx, conn, queue)
		if err != nil {
			return false, err
		}
		handled, err := s.count(ctx, effectsCount)
		missing = n - waits - handled
		return missing <= 0, err
	})
	s.observe("lost", max(missing, 0))
	return err
}

// fill publishes messages into a queue, confirmed.
func (s *stage) fill(ctx context.Context, conn *rabbit.Conn, queue string) error {
	body := []byte(`{"kind":"ok","text":"` + strings.Repeat("x", s.set.Int("kib")<<10) + `"}`)
	return publishInto(ctx, conn, queue, s.set.Int("messages"), body)
}

// residentMiB is the memory of a process.
func residentMiB(pid int) (int, error) {
	size := child.Resident.Of(pid)
	if size == 0 {
		return 0, errors.New("the process has no memory any more")
	}
	return int(size >> 20), nil
}
