package model

import "math/bits"

// The bounds of the model.
const (
	maxRows  = 3
	maxTxs   = 3
	maxKeys  = 2
	relays   = 2
	pipeLen  = 3
	orphaned = 2
)

// set is a set of rows, transactions or keys.
type set uint8

func (s set) has(i int) bool { return s>>i&1 == 1 }
func (s *set) add(i int)     { *s |= 1 << i }
func (s set) len() int       { return bits.OnesCount8(uint8(s)) }

// state is everything there is. It holds no pointers and no padding, so it is its own key.
type state struct {
	db     database
	broker broker
	relays [relays]relay
	faults uint8 // how many more things may go wrong
	bads   uint8 // how many more tries of a row that can be bad fail
}

// Where a row is, once its transaction has committed.
const (
	inOutbox uint8 = iota
	parkedRetry
	parkedDead
	settledRow
	discardedRow
)

// How a transaction stands.
const (
	txOpen uint8 = iota
	txCommitted
	txAborted
)

// Owners besides the relays, which are 1 and 2.
const (
	nobody uint8 = 0
	gone   uint8 = 3 // a process that is dead
)

type database struct {
	xid    [maxTxs]uint8 // 0: none yet
	status [maxTxs]uint8
	id     [maxRows]uint8 // 0: not drawn yet
	place  [maxRows]uint8

	owner, epoch uint8
	expired      bool
	orphans      [orphaned]statement // under way, though whoever sent them does not wait any more
}

// What a statement does to its rows. It has found its epoch to hold; its effect comes when it commits.
const (
	noStatement uint8 = iota
	settles
	parks
	failsAgain
	settlesParked
	discards
	retries
)

type statement struct {
	kind  uint8
	rows  set
	locks bool // the lease's row, until it commits
}

// snapshot is as in PostgreSQL: what is below xmax and not in xip is visible, if it committed. Zero: none.
type snapshot struct {
	xmax uint8
	xip  set // transactions
}

type broker struct {
	published set
	epoch     uint8 // the highest that a publish carried
	spoiled   set   // rows that may be overtaken under skip
}

// How a relay's shard runs.
const (
	off uint8 = iota
	running
	draining
)

// What a relay's connections hold of the fence.
const (
	noFence uint8 = iota
	fenceHeld
	fenceLeft // held by a connection that lives on after the shard
)

// A row in memory.
const (
	absent uint8 = iota
	waiting
	flying
	flyingConfirmed // the broker has answered, the relay does not know it yet
	flyingNacked
	settling // confirmed; the statement is not answered yet
	parking  // bad; the statement is not answered yet
)

// What stands in memory for a row of the parked table.
const (
	noRef uint8 = iota
	refDead
	refIdle
	refFlying
	refConfirmed
	refNacked
	refSettling
	refFailing
)

// read is a statement that has its snapshot but is not answered yet.
type read struct {
	kind           uint8
	late, rows     set
	at             snapshot
	full, overflow bool
	to             uint8 // of a pass: the cursor at its start
	units          set   // of a pass: its keys
	ghosts         set   // rows that left the outbox meanwhile
}

const (
	noRead uint8 = iota
	pageRead
	marksRead
	passRead
)

// pipe is what was published on a connection and has not reached the broker: rows, from 1, plus viaParked.
type pipe [pipeLen]uint8

const viaParked = 8

// relay is one process, as far as one shard is concerned.
type relay struct {
	run, epoch uint8
	loaded     bool

	open  bool // has a channel to publish on
	sure  bool // and the lease held when it was opened
	fence uint8
	pipe  pipe
	// A connection that this process has given up, or that died with it, and the broker has not noticed.
	lingers     bool
	lingerEpoch uint8
	lingerPipe  pipe

	mem     [maxRows]uint8
	ref     [maxRows]uint8
	cursor  uint8
	seen    snapshot
	marking bool // lanes.mustMark
	lagFrom [maxKeys]uint8
	lagNext [maxKeys]uint8
	main    read
	pass    read
	settle  set // rows of the settle statement under way
	errand  statement
}

func (p *pipe) full() bool { return p[pipeLen-1] != 0 }

func (p *pipe) push(entry uint8) {
	i := 0
	for p[i] != 0 {
		i++
	}
	p[i] = entry
}

func (p *pipe) pop() uint8 {
	head := p[0]
	copy(p[:], p[1:])
	p[pipeLen-1] = 0
	return head
}

// mirrored is the same with the relays' names exchanged: they are alike, so only one of the two is looked at.
func (s *state) mirrored() state {
	m := *s
	m.relays[0], m.relays[1] = s.relays[1], s.relays[0]
	if o := s.db.owner; o == 1 || o == 2 {
		m.db.owner = 3 - o
	}
	return m
}
