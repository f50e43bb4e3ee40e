package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/surefoot-mq/surefoot/deploy/prometheus"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/topology"
)

// GameDayAlert is an alert that an exercise of docs/game-day.md must raise.
type GameDayAlert struct {
	Alert string
	// Owner that it must carry; empty: it is no queue's.
	Owner string
}

// GameDay are the alerts of all exercises.
func GameDay() []GameDayAlert {
	return []GameDayAlert{
		{"SurefootRelayGone", ""},
		{"SurefootConsumerSilent", gameOwner},
		{"SurefootOutboxOld", ""},
		{"SurefootDeadLetters", gameOwner},
		{"SurefootRetryStorm", gameOwner},
		{"SurefootCircuitOpen", ""},
	}
}

const gameOwner = "drill"

const gameFreeShards pg.SQL = `SELECT count(*) FROM @schema@.outbox_leases WHERE owner IS NULL`

// Queues of the game day, by what becomes of their messages when it begins.
const (
	gameCatalog = "drill.catalog" // the circuit opens
	gameStorm   = "drill.storm"   // tried again and again
	gameDead    = "drill.dead"    // dead at once
	gameSilent  = "drill.silent"  // nobody consumes
)

func gameDay() Drill {
	return Drill{
		Name: "game-day", Section: SectionGameDay, Tool: promtool,
		Proves: "the failures of the game day raise their alerts, with the queue's owner: the shipped rules are evaluated by promtool over what the processes and " +
			"RabbitMQ really showed, each 200ms of the drill standing for a minute (ages are multiplied, rates divided)",
		Settings: []Setting{
			length("well", 5*time.Second, 3*time.Second, time.Minute, "how long a healthy installation is watched"),
			count("storm", 40, 10, 1000, "messages that fail over and over"),
		},
		Arms: []Arm{
			{Name: Before, Does: "nothing fails", play: gameQuiet},
			{Name: After, Does: "calls fail, dead letters, a queue without consumers, a relay without its broker, then none", play: gameFailures},
		},
		checks: func(Settings) (all []Check) {
			for _, a := range GameDay() {
				all = append(all, expect(Before, a.Alert, false)...)
				all = append(all, expect(After, a.Alert, true)...)
			}
			return all
		},
	}
}

// game is the installation of a game day: a place to post to that can be broken, and the metrics of all.
type game struct {
	*stage
	broken atomic.Bool
	config string // path of the configuration
	record *recording
}

func (s *stage) game(ctx context.Context) (*game, error) {
	g := &game{stage: s}
	answers := map[string]int{gameCatalog: http.StatusServiceUnavailable, gameStorm: http.StatusServiceUnavailable, gameDead: http.StatusBadRequest}
	url, err := s.serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusNoContent
		if g.broken.Load() {
			status = answers[r.URL.Path[1:]]
		}
		w.WriteHeader(status)
	}))
	if err != nil {
		return nil, err
	}
	var specs []topology.Queue
	var queues []any
	for _, name := range []string{gameCatalog, gameStorm, gameDead, gameSilent} {
		q := topology.Queue{Name: name, Owner: gameOwner, Retry: []time.Duration{100 * time.Millisecond}, MaxAttempts: 1000, Prefetch: 20, Concurrency: 5}
		specs = append(specs, q)
		entry := map[string]any{
			"name": q.Name, "owner": q.Owner, "retry": []string{q.Retry[0].String()}, "max_attempts": q.MaxAttempts, "prefetch": q.Prefetch, "concurrency": q.Concurrency,
		}
		if name != gameSilent {
			entry["target"] = map[string]any{"http": map[string]any{"url": url + "/" + name, "dependency": name}}
		}
		queues = append(queues, entry)
	}
	if err := s.prepare(ctx, specs...); err != nil {
		return nil, err
	}
	if err := g.write(queues); err != nil {
		return nil, err
	}
	g.record = record(prometheus.Rules)
	return g, g.scrapeBroker(ctx)
}

// write makes the configuration. YAML reads JSON.
func (g *game) write(queues []any) error {
	dir, err := g.directory()
	if err != nil {
		return err
	}
	never := map[string]any{"breaker": map[string]any{"failures": 1_000_000}}
	text, err := json.Marshal(map[string]any{
		"topology":     map[string]any{"exchange": exchange, "queues": queues},
		"dependencies": map[string]any{gameCatalog: map[string]any{}, gameStorm: never, gameDead: never},
	})
	if err != nil {
		return err
	}
	g.config = filepath.Join(dir, "game-day.yaml")
	return os.WriteFile(g.config, text, 0o600)
}

// scrapeBroker records what RabbitMQ tells of the arm's queues.
func (g *game) scrapeBroker(ctx context.Context) error {
	metrics, err := g.run.management.PrometheusURL(ctx)
	if err != nil {
		return fmt.Errorf("look for RabbitMQ's metrics: %w", err)
	}
	if metrics == "" {
		return errors.New("RabbitMQ shows no metrics: enable its plugin rabbitmq_prometheus")
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment}}
	g.scrape(ctx, g.record, client, "rabbitmq", metrics+"/metrics/detailed?family=queue_coarse_metrics", fmt.Sprintf("vhost=%q", g.vhost))
	return nil
}

// process starts roles, and records their metrics.
func (g *game) process(ctx context.Context, instance, broker string, args ...string) (*process, error) {
	address, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	p, err := g.start(ctx, launch{args: append(args, "--config", g.config), env: g.environ(broker, "SUREFOOT_HTTP_LISTEN="+address)})
	if err != nil {
		return nil, err
	}
	g.scrape(ctx, g.record, &http.Client{Transport: g.transport()}, instance, "http://"+address+"/metrics", "")
	return p, g.await(ctx, p, instance, "process_start_time_seconds", "", func(float64) bool { return true })
}

// await waits until a process that runs shows a metric.
func (g *game) await(ctx context.Context, p *process, instance, metric, part string, is func(v float64) bool) error {
	err := eventually(ctx, 40*time.Second, instance+" to show "+metric, func(context.Context) (bool, error) {
		if p != nil && !p.running() {
			return false, fmt.Errorf("%s has ended: %s", p.name, p.out)
		}
		return g.record.has(instance, metric, part, is), nil
	})
	if err != nil && p != nil {
		err = fmt.Errorf("%w: %s", err, p.out)
	}
	return err
}

// publish puts messages straight into a queue.
func (g *game) publish(ctx context.Context, queue string, n int) error {
	conn, err := g.dial(ctx)
	if err != nil {
		return err
	}
	return publishInto(ctx, conn, queue, n, []byte(`{}`))
}

// judge has every alert evaluated.
func (g *game) judge(ctx context.Context) error {
	for _, a := range GameDay() {
		fires, err := g.fires(ctx, g.record, a)
		if err != nil {
			return err
		}
		g.observe(a.Alert, fires)
	}
	return nil
}

func gameQuiet(ctx context.Context, s *stage) error {
	g, err := s.game(ctx)
	if err != nil {
		return err
	}
	all, err := g.process(ctx, "all", s.url, "run")
	if err != nil {
		return err
	}
	// A second in which an event waits for its relay to begin would stand for five minutes.
	err = eventually(ctx, 40*time.Second, "the relay to own all shards", func(ctx context.Context) (bool, error) {
		free, err := s.count(ctx, gameFreeShards)
		return free == 0, err
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, all.out)
	}
	for _, queue := range []string{gameCatalog, gameStorm, gameDead} {
		if err := g.publish(ctx, queue, 10); err != nil {
			return err
		}
	}
	if err := s.enqueue(ctx, newEvent("drill.order", "order-1", nil)); err != nil {
		return err
	}
	if !pause.For(ctx, s.set.Duration("well")) {
		return context.Cause(ctx)
	}
	return g.judge(ctx)
}

// gameFailures are exercises 3 and 4, then 2, then 1.
func gameFailures(ctx context.Context, s *stage) error {
	g, err := s.game(ctx)
	if err != nil {
		return err
	}
	if err := g.callsFail(ctx); err != nil {
		return err
	}
	if err := g.relaysFail(ctx); err != nil {
		return err
	}
	return g.judge(ctx)
}

// callsFail: messages meet a service that is broken. Their dead letters are there when the process begins that counts them.
func (g *game) callsFail(ctx context.Context) error {
	g.broken.Store(true)
	for queue, n := range map[string]int{gameCatalog: 20, gameStorm: g.set.Int("storm"), gameDead: 3, gameSilent: 5} {
		if err := g.publish(ctx, queue, n); err != nil {
			return err
		}
	}
	consumers, err := g.process(ctx, "consume", g.url, "consume", "run")
	if err != nil {
		return err
	}
	positive := func(v float64) bool { return v > 0 }
	if err := g.await(ctx, consumers, "consume", "surefoot_consumer_handled_total", gameDead, positive); err != nil {
		return err
	}
	all, err := g.process(ctx, "all", g.url, "run")
	if err != nil {
		return err
	}
	if err := g.await(ctx, all, "all", "surefoot_dlq_messages", gameDead, positive); err != nil {
		return err
	}
	if err := g.await(ctx, consumers, "consume", "circuit_breaker_state", gameCatalog, positive); err != nil {
		return err
	}
	if err := g.await(ctx, nil, "rabbitmq", "rabbitmq_detailed_queue_messages_ready", gameSilent, positive); err != nil {
		return err
	}
	if err := g.lasts(ctx, 25); err != nil { // the longest: silent for 10 minutes, for 10 minutes
		return err
	}
	all.kill()
	consumers.kill()
	return nil
}

// relaysFail: a relay begins without its broker, behind which rows wait, and then is killed.
func (g *game) relaysFail(ctx context.Context) error {
	if err := g.enqueue(ctx, newEvent("drill.order", "order-1", nil)); err != nil {
		return err
	}
	net, through, err := g.network(g.url)
	if err != nil {
		return err
	}
	net.cut()
	pause.For(ctx, time.Second) // stands for five minutes
	relay, err := g.process(ctx, "relay", through, "relay", "run")
	if err != nil {
		return err
	}
	err = g.await(ctx, relay, "relay", "surefoot_outbox_oldest_pending_seconds", "", func(v float64) bool { return v > 0 })
	if err != nil {
		return err
	}
	if err := g.lasts(ctx, 5); err != nil {
		return err
	}
	relay.kill()
	return g.lasts(ctx, 10)
}

// lasts lets so many minutes of the game day pass.
func (g *game) lasts(ctx context.Context, minutes int) error {
	if !pause.For(ctx, time.Duration(minutes)*gameStep) {
		return context.Cause(ctx)
	}
	return nil
}
