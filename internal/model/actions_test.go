package model

// Every action, with the functions and statements of package relay (or what of PostgreSQL, the broker or the
// network) that it stands for.
const (
	actBegin uint8 = iota
	actDraw
	actCommit
	actAbort

	actTake
	actRenew
	actExpire
	actExpireGone
	actLearn
	actOwnClock
	actStartAgain
	actHandOver
	actDrained
	actCrash

	actLoad
	actOpen
	actConnectionLost
	actChannelClosed
	actLingerClosed
	actStore
	actStoreLinger
	actNack
	actOutcome

	actRead
	actPage
	actReadFails
	actMarks
	actMarked
	actPass
	actPassed
	actPassFails

	actPublish
	actBad
	actPublishParked
	actBadParked
	actSettle
	actSettled
	actSettleDoubt
	actErrand
	actErrandDone
	actErrandDoubt
	actDiscard
	actRetry
	actOrphanCommits
	actOrphanDies
	actionCount
)

// A fault is what may go wrong, at most so often; everything else is what happens sooner or later.
var actions = [actionCount]struct {
	text, about string
	fault       bool
	code        []string // functions, methods and constants of package relay; none: the world
}{
	actBegin:  {text: "a transaction takes its number:", about: "t"},
	actDraw:   {text: "a transaction that holds the key's lock draws the id of", about: "row "},
	actCommit: {text: "a transaction commits:", about: "t"},
	actAbort:  {text: "a transaction is rolled back:", about: "t", fault: true},

	actTake:       {text: "takes the lease", code: []string{"leaseStore.take", "takeSQL", "keeper.start"}},
	actRenew:      {text: "renews its lease", code: []string{"keeper.renew", "renewSQL"}},
	actExpire:     {text: "the lease runs out, its owner does not know", fault: true},
	actExpireGone: {text: "the lease of a dead owner runs out"},
	actLearn:      {text: "sees that the lease has another owner, and lets go", code: []string{"keeper.compare", "shard.finish"}},
	actOwnClock: {
		text: "lets go, for its own clock says that the lease ran out", fault: true,
		code: []string{"shard.overstayed", "shard.lose", "shard.finish", "keeper.end"},
	},
	actStartAgain: {text: "sees that the lease is still its own", code: []string{"keeper.compare", "keeper.start"}},
	actHandOver:   {text: "begins to drain", fault: true, code: []string{"keeper.handOver"}},
	actDrained: {
		text: "has drained, or drained long enough: releases the lease",
		code: []string{"shard.drained", "shard.finish", "session.close", "keeper.end", "releaseSQL"},
	},
	actCrash: {text: "dies, and starts anew", fault: true},

	actLoad:           {text: "loads the parked rows", code: []string{"shard.load", "parkStore.load", "lanes.loadParked"}},
	actOpen:           {text: "takes the fence and opens a channel", code: []string{"shard.open", "link.open", "openOn"}},
	actConnectionLost: {text: "loses its connection to the broker", fault: true, code: []string{"shard.over", "lanes.lost"}},
	actChannelClosed:  {text: "has its channel closed by the broker", fault: true, code: []string{"shard.over", "lanes.lost"}},
	actLingerClosed:   {text: "is no longer connected, says the broker: its fence is gone"},
	actStore:          {text: "has a publish arrive at the broker:", about: "row "},
	actStoreLinger:    {text: "has a publish arrive from a connection that it has given up:", about: "row "},
	actNack:           {text: "has a publish refused by the broker:", about: "row ", fault: true},
	actOutcome:        {text: "gets the outcome of", about: "row ", code: []string{"shard.collect", "lanes.confirmed", "lanes.nacked"}},

	actRead:      {text: "reads: late rows and the tail, in one snapshot", code: []string{"shard.askMain", "read", "readSQL"}},
	actPage:      {text: "has its page", code: []string{"shard.page", "lanes.applyPage", "lanes.accept", "finishPage"}},
	actReadFails: {text: "gets no page: reads from the first row again", fault: true, code: []string{"shard.page", "lanes.reset"}},
	actMarks:     {text: "looks for the keys of too many late rows", code: []string{"shard.mark", "marksSQL"}},
	actMarked:    {text: "makes them lag", code: []string{"lanes.applyMarks"}},
	actPass:      {text: "reads the rows of lagging keys", code: []string{"shard.pass", "lanes.startPass", "passSQL"}},
	actPassed:    {text: "has the rows of lagging keys", code: []string{"lanes.passOver", "lanes.endPass"}},
	actPassFails: {text: "gets no rows of lagging keys", fault: true, code: []string{"lanes.abandonPass"}},

	actPublish:       {text: "publishes", about: "row ", code: []string{"shard.publishOne", "lanes.next", "lanes.pump", "lanes.sent"}},
	actBad:           {text: "finds a bad row:", about: "row ", code: []string{"shard.publishOne", "lanes.bad"}},
	actPublishParked: {text: "tries a parked row again:", about: "row ", code: []string{"lanes.dueParked", "lanes.takeParked", "shard.publishOne"}},
	actBadParked:     {text: "finds a parked row still bad:", about: "row ", code: []string{"lanes.dueParked", "lanes.bad"}},
	actSettle:        {text: "settles what is confirmed", code: []string{"shard.settle", "settler.delete", "settleSQL"}},
	actSettled:       {text: "has settled", code: []string{"shard.settled", "lanes.settled"}},
	actSettleDoubt:   {text: "gets no answer to its settling", fault: true, code: []string{"lanes.unsettled"}},
	actErrand: {
		text: "stores what became of a bad or parked row:", about: "row ",
		code: []string{"parkStore.fail", "parkSQL", "failAgainSQL", "shard.settleParked", "settleParkedSQL"},
	},
	actErrandDone: {
		text: "has that stored:", about: "row ",
		code: []string{"shard.parkedAs", "lanes.moved", "lanes.vanished", "lanes.failedAgain", "lanes.unparked", "lanes.revive"},
	},
	actErrandDoubt:   {text: "gets no answer to that:", about: "row ", fault: true, code: []string{"shard.park", "shard.settleParked", "shard.request"}},
	actDiscard:       {text: "begins to discard, as an operator asked,", about: "row ", code: []string{"shard.request", "parkStore.carryOut", "lockLeaseSQL"}},
	actRetry:         {text: "begins to revive, as an operator asked,", about: "row ", code: []string{"shard.request", "parkStore.carryOut", "lockLeaseSQL"}},
	actOrphanCommits: {text: "a statement that nobody waits for any more commits"},
	actOrphanDies:    {text: "a statement that nobody waits for any more is undone"},
}
