package drill

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/relay"
)

func competingRelays() Drill {
	return Drill{
		Name: "competing-relays", Section: SectionOutbox,
		Proves: "of several relays each message is one's alone: leases share them out, and nothing is processed twice",
		Settings: []Setting{
			count("messages", 6, 2, 200, "messages, each with a key of its own"),
			count("workers", 2, 2, 4, "relays"),
			length("lease", 2*time.Second, time.Second, 10*time.Second, "how long a silent relay keeps its share (10s by default)"),
		},
		Arms: []Arm{
			{Name: Before, Does: "every worker reads all that is not done and processes it", play: competingNaive},
			{Name: After, Does: "relays with leases", play: competing},
		},
		checks: func(s Settings) []Check {
			messages := s.Int("messages")
			return append(
				expect(Before, "claims", messages*s.Int("workers"), "processed", messages*s.Int("workers"), "messages", messages, "processed_twice", messages),
				expect(After, "workers_with_a_share", s.Int("workers"), "claims", moreThan(0), "claimed_twice", 0, "processed", messages, "messages", messages,
					"processed_twice", 0, "ownership_violations", 0, "rows_left", 0)...)
		},
	}
}

// shards of an outbox, which relays share.
const shards = 8

const competingRead pg.SQL = `SELECT message_id FROM @schema@.outbox ORDER BY id`

// events are n messages with keys of their own.
func events(n int) []message.Message {
	all := make([]message.Message, n)
	for i := range all {
		all[i] = newEvent("drill.event", fmt.Sprintf("key-%d", i), map[string]int{"n": i})
	}
	return all
}

// competingNaive has workers read at the same time, without a lock or a lease.
func competingNaive(ctx context.Context, s *stage) error {
	if _, err := s.database(ctx); err != nil {
		return err
	}
	if err := s.enqueue(ctx, events(s.set.Int("messages"))...); err != nil {
		return err
	}
	var mu sync.Mutex
	claims, processed := 0, map[string]int{}
	var read sync.WaitGroup
	read.Add(s.set.Int("workers"))
	err := together(s.set.Int("workers"), func(int) error {
		rows, err := s.pool.Query(ctx, competingRead.In(s.schema))
		var ids []string
		if err == nil {
			ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		read.Done()
		read.Wait() // both have read before either is done
		mu.Lock()
		defer mu.Unlock()
		for _, id := range ids {
			claims++
			processed[id]++
		}
		return err
	})
	s.observe("claims", claims)
	s.observeProcessed(processed)
	return err
}

func (s *stage) observeProcessed(by map[string]int) {
	all, twice := 0, 0
	for _, n := range by {
		all += n
		if n > 1 {
			twice++
		}
	}
	s.observe("messages", len(by))
	s.observe("processed", all)
	s.observe("processed_twice", twice)
}

const (
	competingShares pg.SQL = `SELECT count(*) FROM @schema@.outbox_leases WHERE owner IS NOT NULL`
	// Whose message is it, by the lease of its key's shard?
	competingOwners pg.SQL = `
SELECT m.name, count(k.key) FROM @schema@.outbox_members m JOIN @schema@.outbox_leases l ON l.owner = m.id
JOIN unnest($1::text[]) AS k(key) ON l.shard = (@schema@.outbox_hash(k.key) & 9223372036854775807) % @schema@.outbox_shards()
GROUP BY m.name`
)

// competing lets relays share the outbox, then enqueues, and compares what each published with what it owns.
func competing(ctx context.Context, s *stage) error {
	if err := s.prepare(ctx, work("drill.work", 3, time.Second)); err != nil {
		return err
	}
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	seen, err := s.watch(ctx, conn, exchange)
	if err != nil {
		return err
	}
	relays := map[string]part{}
	for i := range s.set.Int("workers") {
		name := fmt.Sprintf("relay-%d", i)
		if relays[name], err = s.relay(ctx, name, func(o *relay.Options) { o.Lease = s.set.Duration("lease") }); err != nil {
			return err
		}
	}
	err = eventually(ctx, 30*time.Second, "the relays to share the outbox evenly", func(context.Context) (bool, error) {
		least, all := float64(shards), 0.0
		for _, r := range relays {
			owns := r.value("surefoot_relay_shards")
			least, all = min(least, owns), all+owns
		}
		return all == shards && least >= float64(shards/len(relays)), nil
	})
	if err != nil {
		return err
	}
	messages := events(s.set.Int("messages"))
	if err := s.enqueue(ctx, messages...); err != nil {
		return err
	}
	err = eventually(ctx, 20*time.Second, "all messages to be published", func(ctx context.Context) (bool, error) {
		n, _ := seen.published()
		left, err := s.count(ctx, waiting)
		return n == len(messages) && left == 0, err
	})
	if err != nil {
		return err
	}
	s.observeProcessed(seen.counts())
	if err := s.observeOwners(ctx, relays, messages); err != nil {
		return err
	}
	leases, err := s.count(ctx, competingShares)
	if err != nil {
		return err
	}
	claims := 0
	for _, r := range relays {
		claims += int(r.value("surefoot_relay_shards"))
	}
	s.observe("claims", claims)
	s.observe("claimed_twice", claims-leases)
	return s.observeCount(ctx, "rows_left", waiting)
}

// observeOwners notes what a relay published that another one owns.
func (s *stage) observeOwners(ctx context.Context, relays map[string]part, messages []message.Message) error {
	keys := make([]string, len(messages))
	for i, m := range messages {
		keys[i] = m.Key
	}
	rows, err := s.pool.Query(ctx, competingOwners.In(s.schema), keys)
	if err != nil {
		return err
	}
	type owner struct {
		Name  string
		Count int
	}
	owners, err := pgx.CollectRows(rows, pgx.RowToStructByPos[owner])
	if err != nil {
		return err
	}
	violations, sharing, owned := 0, 0, map[string]int{}
	for _, o := range owners {
		owned[o.Name] = o.Count
	}
	var table [][]string
	for name, r := range relays {
		published := int(r.value("surefoot_relay_published_total"))
		violations += max(published-owned[name], owned[name]-published)
		if r.value("surefoot_relay_shards") > 0 {
			sharing++
		}
		table = append(table, []string{name, valueText(int(r.value("surefoot_relay_shards"))), valueText(owned[name]), valueText(published)})
	}
	s.observe("workers_with_a_share", sharing)
	s.observe("ownership_violations", violations)
	s.table("who owned and who published", []string{"RELAY", "SHARDS", "OWNED MESSAGES", "PUBLISHED"}, table)
	return nil
}
