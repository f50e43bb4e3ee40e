package relay

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// leaveTimeout bounds the statements of a graceful stop after the drain.
const leaveTimeout = 2 * time.Second

// keeper owns the set of running shards: it renews their leases, takes free ones up to this member's share,
// and hands over what is above it.
type keeper struct {
	relay     *Relay
	leases    *leaseStore
	owned     map[int16]*owned
	fences    string // how the names of fences begin
	ended     chan *owned
	connected bool // at the last look
	// ableUntil is a lease after the broker was seen last.
	ableUntil time.Duration
	wg        sync.WaitGroup
}

// owned is a shard that runs.
type owned struct {
	shard    *shard
	epoch    int64
	until    atomic.Int64 // see shard.until
	cancel   context.CancelFunc
	stopping bool
	link     int
}

func newKeeper(r *Relay, leases *leaseStore) *keeper {
	return &keeper{relay: r, leases: leases, owned: map[int16]*owned{}, ended: make(chan *owned, 64)}
}

// run keeps leases until ctx ends, then drains all shards and leaves. work outlives ctx by the drain.
func (k *keeper) run(ctx, work context.Context) {
	every := k.leases.ttl / 3
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var connecting <-chan struct{}
		if conn, _, changed := k.relay.links[0].state(); conn == nil {
			connecting = changed
		} else if !k.connected { // it came while the last look was under way
			timer.Reset(0)
		}
		select {
		case <-ctx.Done():
			k.leave(work)
			return
		case <-connecting:
			timer.Reset(0)
		case o := <-k.ended:
			k.end(work, o)
			timer.Reset(every / 10)
		case <-timer.C:
			if k.tick(work) {
				timer.Reset(every)
			} else {
				timer.Reset(every / 8)
			}
		}
	}
}

// tick renews, looks and rebalances. It reports whether this member has its share.
func (k *keeper) tick(ctx context.Context) bool {
	begun := time.Since(k.relay.born)
	ctx, cancel := context.WithTimeout(ctx, k.leases.ttl/3)
	defer cancel()
	settled, err := k.rebalance(ctx, begun)
	k.relay.health.set(part{"leases", noShard}, err)
	return err == nil && settled
}

func (k *keeper) rebalance(ctx context.Context, begun time.Duration) (bool, error) {
	connected, able := k.able(begun)
	if err := k.leases.heartbeat(ctx, able); err != nil {
		return false, err
	}
	if err := k.renew(ctx, begun); err != nil {
		return false, err
	}
	v, err := k.leases.view(ctx)
	if err != nil {
		return false, err
	}
	k.compare(v, begun) //nolint:contextcheck // shards started here live until their lease ends, not until this call does
	share := v.share()
	k.handOver(len(k.owned) - share)
	missing := share - len(k.owned)
	if missing > 0 && connected && slices.ContainsFunc(v.leases, func(l lease) bool { return l.free && k.owned[l.shard] == nil }) {
		begun := time.Since(k.relay.born)
		if k.fences, err = k.leases.fences(ctx); err != nil { // each time: a pooler may lead to another server
			return false, err
		}
		taken, err := k.leases.take(ctx, missing)
		if err != nil {
			return false, err
		}
		for _, l := range taken {
			k.start(l, begun) //nolint:contextcheck // as above
		}
	}
	return len(k.owned) >= share, nil
}

// able reports whether this member can publish, now and as far as others need to know: a connection that is lost comes
// back, and only when it does not for a lease are the shards better off elsewhere.
func (k *keeper) able(now time.Duration) (connected, able bool) {
	conn, _, _ := k.relay.links[0].state()
	connected = conn != nil
	if k.connected = connected; connected {
		k.ableUntil = now + k.leases.ttl
	}
	return connected, now < k.ableUntil
}

// renew extends the leases. A lease counts from before the request was sent, less a tenth for what is on its way when it ends.
func (k *keeper) renew(ctx context.Context, begun time.Duration) error {
	var shards []int16
	var epochs []int64
	for id, o := range k.owned {
		shards, epochs = append(shards, id), append(epochs, o.epoch)
	}
	if len(shards) == 0 {
		return nil
	}
	renewed, err := k.leases.renew(ctx, shards, epochs)
	if err != nil {
		return err
	}
	for _, id := range renewed {
		k.owned[id].until.Store(int64(k.lastsUntil(begun)))
	}
	return nil
}

func (k *keeper) lastsUntil(begun time.Duration) time.Duration {
	return begun + k.leases.ttl*9/10
}

// compare ends shards that have another owner or epoch now, and takes up those that are this member's without
// its knowing: the reply to a take was lost.
func (k *keeper) compare(v view, begun time.Duration) {
	for _, l := range v.leases {
		o := k.owned[l.shard]
		switch {
		case o != nil && (!l.mine || l.epoch != o.epoch):
			o.until.Store(math.MinInt64 / 2)
			o.cancel()
		case o == nil && l.mine && !l.free:
			k.start(l, begun)
		}
	}
}

// handOver stops n shards gracefully; others take them once they are released.
func (k *keeper) handOver(n int) {
	for _, o := range k.owned {
		if o.stopping {
			n--
		}
	}
	for _, o := range k.owned {
		if n <= 0 {
			return
		}
		if !o.stopping {
			o.stopping = true
			close(o.shard.stop)
			n--
		}
	}
}

func (k *keeper) start(l lease, begun time.Duration) {
	if k.owned[l.shard] != nil {
		return // its former run has not ended yet
	}
	ctx, cancel := context.WithCancel(k.relay.work)
	o := &owned{epoch: l.epoch, cancel: cancel, link: k.leastUsed()}
	o.until.Store(int64(k.lastsUntil(begun)))
	o.shard = newShard(k.relay, l, k.fences, k.relay.links[o.link], &o.until)
	k.owned[l.shard] = o
	k.relay.enlist(l.shard, o.shard)
	k.relay.opts.Logger.Info().Int(telemetry.FieldShard, int(l.shard)).Int64("epoch", l.epoch).Msg("shard taken")
	k.wg.Go(func() {
		defer telemetry.FatalOnPanic(k.relay.opts.Logger)
		o.shard.run(ctx)
		cancel()
		k.ended <- o
	})
}

// leastUsed spreads the shards over the links.
func (k *keeper) leastUsed() int {
	used := make([]int, len(k.relay.links))
	for _, o := range k.owned {
		used[o.link]++
	}
	return slices.Index(used, slices.Min(used))
}

// end releases the lease of a shard that no longer runs.
func (k *keeper) end(ctx context.Context, o *owned) {
	delete(k.owned, o.shard.id)
	k.relay.enlist(o.shard.id, nil)
	// Also when it was lost: if nobody has taken it since, its epoch must not run a second time beside statements of the first.
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if err := k.leases.release(ctx, o.shard.id, o.epoch); err != nil {
		k.relay.opts.Logger.Warn().Err(err).Msg("lease not released; it runs out by itself")
	}
	k.relay.opts.Logger.Info().Int(telemetry.FieldShard, int(o.shard.id)).Int64("epoch", o.epoch).Msg("shard released")
}

// leave drains all shards at once, releases them, and takes this member off the list. Leases are renewed
// meanwhile.
func (k *keeper) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, k.relay.opts.Drain+leaveTimeout)
	defer cancel()
	k.handOver(len(k.owned))
	renewal := time.NewTicker(k.leases.ttl / 3)
	defer renewal.Stop()
	for len(k.owned) > 0 {
		select {
		case o := <-k.ended:
			k.end(ctx, o)
		case <-renewal.C:
			renewing, cancel := context.WithTimeout(ctx, leaveTimeout)
			_ = k.renew(renewing, time.Since(k.relay.born)) // then they run out, which is safe
			cancel()
		}
	}
	k.wg.Wait()
	leaving, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	if err := k.leases.leave(leaving); err != nil {
		k.relay.opts.Logger.Warn().Err(err).Msg("member not taken off the list; it expires by itself")
	}
}
