package relay

// The kinds of reads that can be under way for a shard at the same time, one of each.
const (
	mainRead = iota
	lagRead
	sweepRead
	readKinds
)

// maxGhosts bounds what is remembered for one read; beyond it the read's result is void.
const maxGhosts = 500_000

// ghosts are the ids that left the outbox while a read was under way. Its result may still show them.
type ghosts struct {
	active, void bool
	ids          map[int64]struct{}
}

func (g *ghosts) begin() {
	g.active, g.void, g.ids = true, false, map[int64]struct{}{}
}

func (g *ghosts) end() { *g = ghosts{} }

func (g *ghosts) add(id int64) {
	if !g.active || g.void {
		return
	}
	if len(g.ids) >= maxGhosts {
		g.void, g.ids = true, nil
		return
	}
	g.ids[id] = struct{}{}
}

func (g *ghosts) has(id int64) bool {
	_, gone := g.ids[id]
	return gone
}
