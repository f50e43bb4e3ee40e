package model

// rules are the protocol. The zero value keeps them all; each switch breaks one.
type rules struct {
	skip bool // relay.on_poison: skip; breaks nothing

	plainCursor   bool // reads by id > cursor, without late rows
	xidCursor     bool // reads by (xid, id) > cursor, below the snapshot's xmin
	noNewXids     bool // late rows are only those in flight at the last read, not those that came since
	settleAnyone  bool // settling does not name the epoch
	parkAnyone    bool // nor do the statements on the parked table
	noFence       bool // two connections may publish for one shard
	noClock       bool // an owner begins to publish though it is not sure of its lease
	lostIsSettled bool // a channel's end counts as a confirm
	noLoad        bool // a new owner reads before it knows what is parked
	manyInFlight  bool // of one key under strict
	noDropping    bool // later rows of a bad row's key stay ready under strict
	onlyBadPass   bool // no switch of the relay: a requirement that skip does not keep

	// These the model found in the relay; TestParkingWhoseAnswerIsLost and its neighbours hold the relay to them.
	parkOnce     bool // parking that finds its row gone does not look whether its own lost try has parked it
	parkNoLock   bool // the statements on the parked table do not lock the lease's row
	sameEpoch    bool // a shard that ended without another owner is started again at its old epoch
	requestDoubt bool // an operator's request is not tried again when its answer is lost: its key stays blocked in memory
	fenceStays   bool // a draining shard whose channel was closed leaves its fence behind
}

// config is a small world.
type config struct {
	txs       [][]int // rows of each transaction, in the order of their ids
	keys      [maxRows]int
	committed int // so many transactions have committed at the start
	bad       set // rows that can be bad
	bads      uint8
	faults    uint8
	allowed   []uint8 // faults
	overlook  string  // a requirement that is not looked at
	alone     bool    // one relay, which owns the shard for good
	instant   bool    // publishes are confirmed at once
	window    int     // rows a page
	waiting   int     // rows in memory that wait
	perKey    int
}

type model struct {
	rules
	config
	rows    int
	tx      [maxRows]int
	allowed [actionCount]bool
}

func newModel(r rules, c config) *model {
	m := &model{rules: r, config: c}
	for t, rows := range c.txs {
		for _, x := range rows {
			m.tx[x] = t
			m.rows++
		}
	}
	for _, a := range c.allowed {
		m.allowed[a] = true
	}
	return m
}

func (m *model) start() state {
	s := state{faults: m.faults, bads: m.bads}
	for t := range m.committed {
		s.db.xid[t], s.db.status[t] = uint8(t+1), txCommitted
		for _, x := range m.txs[t] {
			s.db.id[x] = s.db.lastID() + 1
		}
	}
	if m.alone {
		s.db.owner, s.db.epoch = 1, 1
		s.relays[0] = relay{run: running, epoch: 1, loaded: true, open: true, sure: true, fence: fenceHeld}
	}
	return s
}

// What can be broken.
const (
	brokenLoss      = "G1: an unpublished row is settled"
	brokenEnd       = "G1: a committed row can neither be published nor discarded any more"
	brokenEarly     = "G1: an uncommitted row is published"
	brokenOrder     = "G2: a row is published before an earlier one of its key"
	brokenEpoch     = "a statement of an old epoch changes a row"
	brokenFence     = "a publish of an old epoch follows one of a newer"
	brokenDiscarded = "a row is published after it was discarded"
)

// done reports whether every committed row is published and settled, or discarded.
func (m *model) done(s *state) bool {
	for t := range m.txs {
		if s.db.status[t] == txOpen {
			return false
		}
	}
	for x := range m.rows {
		if m.committedRow(s, x) && s.db.place[x] < settledRow {
			return false
		}
	}
	return true
}

func (m *model) committedRow(s *state, x int) bool { return s.db.status[m.tx[x]] == txCommitted }

func (m *model) visible(s *state, x int) bool {
	return m.committedRow(s, x) && s.db.place[x] == inOutbox
}

// expansion collects the steps from one state.
type expansion struct {
	*model
	from *state
	out  []step
}

// steps returns the steps from one state, valid until it is called again.
func (e *expansion) steps(from *state) []step {
	e.from, e.out = from, e.out[:0]
	e.writers()
	e.orphans()
	for i := range relays {
		if i == 0 || !e.alone {
			e.leases(i)
			e.broker(i)
			e.parkedRows(i)
			e.reads(i)
			e.publishes(i)
		}
	}
	return e.out
}

// do adds a step; change returns what it breaks. A fault counts, and happens only where it is allowed.
func (e *expansion) do(action uint8, relay, what int, change func(*state) string) {
	next := *e.from
	if actions[action].fault {
		if !e.allowed[action] || next.faults == 0 {
			return
		}
		next.faults--
	}
	broken := change(&next)
	if broken == e.overlook {
		broken = ""
	}
	e.out = append(e.out, step{label{action, int8(relay), int8(what)}, next, broken})
}

// fine makes a change that can break nothing by itself.
func fine(change func(*state)) func(*state) string {
	return func(s *state) string {
		change(s)
		return ""
	}
}
