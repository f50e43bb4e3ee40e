package relay

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	// tellEvery is how often a shard looks whether its stopped routes are others than it told last.
	tellEvery = time.Second
	// tellAll is when a new owner knows its stopped routes, and what the former one told is forgotten.
	tellAll = 15 * time.Second
	// maxTold bounds the stopped routes that a shard tells of; the oldest ones come first.
	maxTold = 500
)

// tellSQL writes down the stopped routes of a shard: for people, see migration 7. since is kept over a change of owner.
const tellSQL pg.SQL = `
WITH held AS (SELECT FROM @schema@.outbox_leases WHERE shard = $1 AND epoch = $2 AND server = pg_postmaster_start_time()),
given AS (
    SELECT * FROM unnest($3::text[], $4::text[], $5::boolean[], $6::boolean[], $7::float8[], $8::text[])
        AS g(exchange, routing_key, whole_exchange, is_default, age, error)
), gone AS (
    DELETE FROM @schema@.outbox_stopped s WHERE $9 AND s.shard = $1 AND EXISTS (SELECT FROM held) AND NOT EXISTS (
        SELECT FROM given g WHERE (g.exchange, g.routing_key, g.whole_exchange) = (s.exchange, s.routing_key, s.whole_exchange))
)
INSERT INTO @schema@.outbox_stopped AS s (shard, exchange, routing_key, whole_exchange, is_default, since, error)
SELECT $1, g.exchange, g.routing_key, g.whole_exchange, g.is_default, clock_timestamp() - make_interval(secs => g.age), g.error
FROM given g, held
ON CONFLICT (shard, exchange, routing_key, whole_exchange)
DO UPDATE SET is_default = excluded.is_default, error = excluded.error, since = least(s.since, excluded.since)`

// stoppedRoute is a route whose rows wait, or with whole set an exchange.
type stoppedRoute struct {
	routeName
	whole bool
	since time.Time
	err   string
}

// stoppedRoutes returns what waits, at most maxTold, the longest first.
func (s *lanes) stoppedRoutes() []stoppedRoute {
	var all []stoppedRoute
	add := func(name routeName, whole bool, g *gate) {
		all = append(all, stoppedRoute{name, whole, g.since, message.Storable(g.reason.Error(), maxErrorText)})
	}
	for name, g := range s.gates {
		if g.stopped {
			add(routeName{exchange: name}, true, g)
		}
	}
	for t := range s.shut {
		add(t.name, false, &t.gate)
	}
	slices.SortFunc(all, func(a, b stoppedRoute) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.exchange, b.exchange), cmp.Compare(a.key, b.key))
	})
	return all[:min(len(all), maxTold)]
}

// tell lets people know which routes are stopped.
func (s *shard) tell(ctx context.Context, now time.Time) {
	if s.telling || now.Before(s.tellAt) {
		return
	}
	s.tellAt = now.Add(tellEvery)
	stopped := s.lanes.stoppedRoutes()
	s.relay.stopped(s.id, stopped)
	all := now.Sub(s.begun) > tellAll
	if slices.Equal(stopped, s.told) && (s.toldAll || !all) {
		return
	}
	s.telling = true
	var err error
	s.errand(ctx, func(ctx context.Context) { err = s.relay.tell(ctx, s.id, s.epoch, stopped, all) }, func() {
		s.telling = false
		if err != nil {
			s.logger.Debug().Err(err).Msg("stopped routes not written down")
			return
		}
		s.told, s.toldAll = stopped, all
	})
}

func (r *Relay) tell(ctx context.Context, shard int16, epoch int64, stopped []stoppedRoute, all bool) error {
	n := len(stopped)
	exchanges, keys, texts := make([]string, n), make([]string, n), make([]string, n)
	whole, defaults, ages := make([]bool, n), make([]bool, n), make([]float64, n)
	for i, t := range stopped {
		exchanges[i], keys[i], texts[i], whole[i] = t.exchange, t.key, t.err, t.whole
		defaults[i], ages[i] = t.exchange == r.opts.Exchange, time.Since(t.since).Seconds()
	}
	_, err := r.opts.Pool.Exec(ctx, tellSQL.In(r.opts.Schema), shard, epoch, exchanges, keys, whole, defaults, ages, texts, all)
	if err != nil {
		return fmt.Errorf("write down stopped routes: %w", err)
	}
	return nil
}

// stopped counts the stopped routes of all shards, each once.
func (r *Relay) stopped(shard int16, stopped []stoppedRoute) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(stopped) == 0 && len(r.halted[shard]) == 0 {
		return
	}
	r.halted[shard] = stopped
	type name struct {
		routeName
		whole bool
	}
	distinct := map[name]struct{}{}
	for _, routes := range r.halted {
		for _, t := range routes {
			distinct[name{t.routeName, t.whole}] = struct{}{}
		}
	}
	r.metrics.stopped.Set(float64(len(distinct)))
}
