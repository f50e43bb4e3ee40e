package drill

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

func brokerOutage() Drill {
	return Drill{
		Name: "broker-outage", Section: SectionSaga, Alone: true,
		Proves: "while the broker is away nothing is lost and readiness says so; when it is back, the outbox drains by itself",
		Settings: []Setting{
			length("away", 4*time.Second, time.Second, 5*time.Minute, "how long the broker is stopped, its own stop and start on top"),
			length("every", 50*time.Millisecond, 10*time.Millisecond, time.Second, "time between two messages of the load"),
		},
		Arms: []Arm{
			{Name: Before, Does: "published without an outbox, while the network to the broker is cut", play: publishedBare},
			{Name: After, Does: "the local stack's broker is stopped and started under load", play: outage},
		},
		checks: func(s Settings) []Check {
			return append(
				expect(Before, "lost", moreThan(0)),
				expect(After, "ready_before", http.StatusOK, "ready_while_away", http.StatusServiceUnavailable, "ready_again", http.StatusOK,
					"reason_names_the_broker", true, "live_always", true, "committed_while_away", moreThan(0), "lost", 0, "handled_twice", 0, "left_in_outbox", 0,
					"attempts_burnt", 0, "left_in_queues", 0, "dead_letters", 0)...)
		},
	}
}

// publishedBare publishes without confirms through a network that is cut in between.
func publishedBare(ctx context.Context, s *stage) error {
	if err := s.prepare(ctx, work("drill.work", 3, time.Second)); err != nil {
		return err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	n, through, err := s.network(s.url)
	if err != nil {
		return err
	}
	sent, cut := 0, 0
	publish := func() error {
		sent++
		client, err := amqp.DialConfig(through, amqp.Config{Dial: amqp.DefaultDial(time.Second)})
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		channel, err := client.Channel()
		if err != nil {
			return err
		}
		return channel.PublishWithContext(ctx, exchange, "drill.job", false, false, amqp.Publishing{MessageId: strconv.Itoa(sent), Body: []byte("{}")})
	}
	for i := range 15 {
		if i == 5 {
			n.cut()
		}
		if i == 10 {
			if err := n.heal(ctx); err != nil {
				return err
			}
		}
		if publish() != nil { // whoever has no outbox has nothing to try again from
			cut++
		}
		pause.For(ctx, 20*time.Millisecond)
	}
	var there int
	err = eventually(ctx, 10*time.Second, "what was published", func(ctx context.Context) (bool, error) {
		there, err = ready(ctx, conn, "drill.work")
		return there >= sent-cut, err
	})
	s.observe("committed", sent)
	s.observe("lost", sent-there)
	return err
}

// outage stops the broker of the local stack under load and starts it again.
func outage(ctx context.Context, s *stage) error {
	queue := work("drill.work", 3, time.Second)
	if err := s.prepare(ctx, queue); err != nil {
		return err
	}
	if err := s.workTables(ctx); err != nil {
		return err
	}
	// The vhost goes only when its broker is there again.
	s.onClose(func(ctx context.Context) error { return s.o.Stack.call(ctx, s.o.Environ, "up", "broker") })
	address, err := freePort(ctx)
	if err != nil {
		return err
	}
	relay, err := s.start(ctx, launch{args: []string{"relay", "run"}, env: s.environ(s.url, "SUREFOOT_HTTP_LISTEN="+address, "SUREFOOT_RELAY_LEASE=2s")})
	if err != nil {
		return err
	}
	if _, err := s.act(ctx, roleWorker, workerTask{Queue: queue}); err != nil {
		return err
	}
	probes := s.probe(ctx, address)
	load, err := s.load(ctx, s.set.Duration("every"), func(int) string { return kindOK })
	if err != nil {
		return err
	}
	err = eventually(ctx, 30*time.Second, "the load to flow", func(ctx context.Context) (bool, error) {
		n, err := s.count(ctx, effectsCount)
		return n > 10 && probes.last() == http.StatusOK, err
	})
	if err != nil {
		return errors.Join(err, errors.New(relay.out.String()))
	}
	s.observe("ready_before", probes.last())
	probes.begin()
	if err := s.away(ctx, probes); err != nil {
		return err
	}
	if err := load.stop(); err != nil {
		return err
	}
	return s.drained(ctx, queue.Name, queue.DLQ())
}

// away stops the broker, waits, and starts it.
func (s *stage) away(ctx context.Context, p *probes) error {
	before, err := s.count(ctx, sentCount)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := s.o.Stack.call(ctx, s.o.Environ, "down", "broker"); err != nil {
		return err
	}
	pause.For(ctx, s.set.Duration("away"))
	p.mu.Lock()
	s.observe("ready_while_away", p.worst)
	s.observe("reason_names_the_broker", p.why != "" && strings.Contains(strings.ToLower(p.why), "rabbit"))
	p.mu.Unlock()
	during, err := s.count(ctx, sentCount)
	if err != nil {
		return err
	}
	s.observe("committed_while_away", during-before)
	if err := s.o.Stack.call(ctx, s.o.Environ, "up", "broker"); err != nil {
		return err
	}
	s.observe("broker_away", time.Since(began))
	back := time.Now()
	err = eventually(ctx, 60*time.Second, "readiness to come back", func(context.Context) (bool, error) { return p.last() == http.StatusOK, nil })
	s.observe("ready_again_after", time.Since(back))
	p.mu.Lock()
	defer p.mu.Unlock()
	s.observe("ready_again", p.ready)
	s.observe("live_always", len(p.live) == 1 && p.live[http.StatusOK] > 0)
	return err
}

// drained waits until everything is handled, and counts.
func (s *stage) drained(ctx context.Context, queue, dlq string) error {
	began := time.Now()
	err := eventually(ctx, 60*time.Second, "the outbox to drain", func(ctx context.Context) (bool, error) {
		rows, err := s.count(ctx, waiting)
		if err != nil || rows > 0 {
			return false, err
		}
		lost, err := s.count(ctx, sentLost)
		return lost == 0, err
	})
	s.observe("drained_after", time.Since(began))
	if failed := s.observeCounts(ctx, counted{"committed", sentCount}, counted{"lost", sentLost}, counted{"handled_twice", effectsTwice},
		counted{"left_in_outbox", waiting}); err != nil || failed != nil {
		return errors.Join(err, failed)
	}
	conn, err := rabbit.Dial(ctx, s.run.rabbit(s.url))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	waits, err := ready(ctx, conn, queue, queue+".retry")
	if err != nil {
		return err
	}
	dead, err := ready(ctx, conn, dlq)
	s.observe("left_in_queues", waits)
	s.observe("dead_letters", dead)
	s.observe("attempts_burnt", len(s.logs.find("deferred retry")))
	return err
}
