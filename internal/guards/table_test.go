package guards_test

// guard is one line of defence, and what of the code must go for it to be gone.
type guard struct {
	name string // as docs/guarantees.md has it
	file string // from the root of the module
	from string // stands there exactly once
	to   string
	// pkg and test say which test must go red then.
	pkg, test string
}

// all are the guards. Each is removed alone.
var all = []guard{
	{
		name: "a row is settled only when its publish is confirmed", file: "relay/shard.go",
		from: "		s.lanes.sent(r, time.Now())\n", to: "		s.lanes.sent(r, time.Now())\n		s.lanes.confirmed(r)\n",
		pkg: "relay", test: "TestUnroutableRouteWaitsWhileOthersPass",
	},
	{
		name: "a returned row is not settled", file: "relay/shard.go",
		from: "case result.Outcome == rabbit.Confirmed:", to: "case result.Outcome == rabbit.Confirmed || result.Outcome == rabbit.Returned:",
		pkg: "relay", test: "TestUnroutableRouteWaitsWhileOthersPass",
	},
	{
		name: "publishes are mandatory", file: "internal/rabbit/encode.go",
		from: "const mandatory = 1\n", to: "const mandatory = 0\n",
		pkg: "internal/rabbit", test: "TestReturnsArePairedWithTheirMessages",
	},
	{
		name: "a settlement names its lease's epoch", file: "relay/settle.go",
		from: "AND l.epoch = h.epoch ", to: "",
		pkg: "relay", test: "TestSettlingTwiceNeverDeletesTheNeighbour",
	},
	{
		name: "a renewal names its lease's epoch", file: "relay/lease.go",
		from: "AND k.epoch = mine.epoch ", to: "",
		pkg: "relay", test: "TestARenewalOfAFormerEpochIsFenced",
	},
	{
		name: "a settlement deletes exactly its rows", file: "relay/settle.go",
		from: "OR f.shard = w.shard AND f.id = w.id)", to: "OR true)",
		pkg: "relay", test: "TestSettlingTwiceNeverDeletesTheNeighbour",
	},
	{
		name: "a lease further ahead than it lasts has run out", file: "relay/lease.go",
		from: "WHERE owner IS NULL OR expires_at < clock_timestamp() OR expires_at > clock_timestamp() + ttl", to: "WHERE owner IS NULL OR expires_at < clock_timestamp()",
		pkg: "relay", test: "TestLeaseFromAClockThatWasSetBackIsTaken",
	},
	{
		name: "rows that commit late are read", file: "relay/read.go",
		from: "WHERE a.snapshot IS NOT NULL AND pg_visible_in_snapshot(t.xid, now.snapshot)", to: "WHERE false",
		pkg: "relay", test: "TestFloodOfLateRows",
	},
	{
		name: "a shard publishes only behind its fence", file: "internal/rabbit/fence.go",
		from: "ch.QueueDeclare(name, false, false, true, false,", to: "ch.QueueDeclare(name, false, true, false, false,",
		pkg: "internal/rabbit", test: "TestAFenceIsHeldByOneConnectionAndTakenOverAtItsEnd",
	},
	{
		name: "an alarm of the broker shows in readiness", file: "relay/link.go",
		from: `l.status(fmt.Errorf("the broker takes no messages: %s", alarm))`, to: `_ = alarm`,
		pkg: "relay", test: "TestAnAlarmOfTheBrokerIsToldOf",
	},
	{
		name: "what publishing waits for is logged", file: "relay/health.go",
		from: `Msg("publishing waits")`, to: `Discard()`,
		pkg: "relay", test: "TestWhatIsWaitedForIsLogged",
	},
	{
		name: "a relay starts only with its rights", file: "relay/relay.go",
		from: "		err = cmp.Or(CheckRights(ctx, r.opts.Pool, r.opts.Schema), err)", to: "		err = cmp.Or(nil, err)",
		pkg: "relay", test: "TestARoleWithoutRightsRefusesToStart",
	},
	{
		name: "the janitor's rights are among them", file: "relay/rights.go",
		from: "('outbox_once', '{SELECT,DELETE}')", to: "('outbox_once', '{SELECT}')",
		pkg: "relay", test: "TestTheJanitorNeedsNoMoreRights",
	},
	{
		name: "a relay refuses a schema of another version", file: "relay/relay.go",
		from: "err := pg.CheckVersion(ctx, r.opts.Pool, r.opts.Schema)", to: "var err error; _ = pg.CheckVersion",
		pkg: "relay", test: "TestARelayRefusesASchemaOfAnotherVersion",
	},
	{
		name: "the inbox row comes before the handler", file: "consumer/inbox.go",
		from: `return pgx.TxOptions{BeginQuery: b.execute + key.String() + "')"}`, to: `return pgx.TxOptions{BeginQuery: beginSQL}`,
		pkg: "consumer", test: "TestADuplicateHasNoSecondEffect",
	},
	{
		name: "the inbox row comes before the handler, also unprepared", file: "consumer/inbox.go",
		from: `return pgx.TxOptions{BeginQuery: b.begin + key.String() + "')"}`, to: `return pgx.TxOptions{BeginQuery: beginSQL}`,
		pkg: "consumer", test: "TestStatementsThatDoNotStayPreparedCostNothing",
	},
	{
		name: "a consumer refuses a schema of another version", file: "consumer/inbox.go",
		from: "if err := pg.CheckVersion(ctx, b.pool, b.schema); err != nil {", to: "if err := pg.CheckVersion(ctx, b.pool, b.schema); err != nil && false {",
		pkg: "consumer", test: "TestAConsumerWaitsForASchemaOfItsVersion",
	},
	{
		name: "deferred messages wait by the database's clock", file: "consumer/process.go",
		from: "	wait := j.early.Sub(c.clock())\n", to: "	wait := j.early.Sub(time.Now().Add(time.Hour))\n",
		pkg: "consumer", test: "TestRetryAfterBeyondTheLadderComesBackNotBefore",
	},
	{
		name: "only the transaction that was begun is committed", file: "consumer/inbox.go",
		from: "		err = b.own(ctx, tx, key)\n", to: "",
		pkg: "consumer", test: "TestAMisusedTransactionIsTheHandlersFault",
	},
	{
		name: "a message is moved only when its copy is confirmed and routed", file: "consumer/publish.go",
		from: `err = p.PublishConfirmed(ctx, "", queue, msg)`, to: `err = p.TryPublish("", queue, msg, nil)`,
		pkg: "consumer", test: "TestAMissingRetryQueueKeepsTheMessageAndSaysSo",
	},
	{
		name: "a message that kills its process is bounded", file: "consumer/run.go",
		from: "if err == nil && crashes > 0 && ", to: "if err == nil && crashes > 1000 && ",
		pkg: "consumer", test: "TestAMessageThatKillsItsProcessIsBoundedAndHarmsNobody",
	},
	{
		name: "a lossy dead-letter path is refused", file: "consumer/verify.go",
		from: "if err := report.Err(); err != nil {", to: "if err := report.Err(); err != nil && false {",
		pkg: "consumer", test: "TestConsumingNeedsADeadLetterPathThatLosesNothing",
	},
	{
		name: "a handler that ignores its deadline is logged", file: "consumer/late.go",
		from: `Msg("handler ignores its deadline and holds its place")`, to: `Discard()`,
		pkg: "consumer", test: "TestAHandlerThatIgnoresItsDeadlineIsToldOf",
	},
	{
		name: "the errors of decoding quote no payload", file: "consumer/mux.go",
		from: "return withoutValue(err)", to: "return err",
		pkg: "consumer", test: "TestWhatIsSaidOfAMalformedPayloadQuotesNoValue",
	},
	{
		name: "acknowledgements of an ended subscription are dropped", file: "internal/rabbit/settle.go",
		from: "if s.ended || s.channel.amqp.IsClosed() {", to: "if false {",
		pkg: "internal/rabbit", test: "TestALateAckHitsNoOtherMessage",
	},
	{
		name: "a tag is settled once", file: "internal/rabbit/settle.go",
		from: "if !s.tags.settle(tag, multiple) {", to: "if !s.tags.settle(tag, multiple) && false {",
		pkg: "internal/rabbit", test: "TestATagIsSettledOnce",
	},
	{
		name: "numbers that the broker cannot read are not sent", file: "internal/rabbit/encode.go",
		from: "if math.IsNaN(f) || math.IsInf(f, 0) {", to: "if false {",
		pkg: "internal/rabbit", test: "TestRefusalsHurtNobody",
	},
	{
		name: "headers that the Go client cannot receive are not enqueued", file: "message/headers.go",
		from: "	if len(values) > maxEntries {", to: "	if false {",
		pkg: "internal/cli", test: "TestHostileMessagesAtEveryWayIntoTheOutbox",
	},
	{
		name: "the broker's headers are not published again", file: "message/amqp.go",
		from: "	maps.DeleteFunc(clean, func(name string, _ any) bool { return BrokerOwned(name) })\n", to: "",
		pkg: "deadletter", test: "TestRedrivenBrokerLetterSurvivesTheRetryTier",
	},
	{
		name: "attempts do not turn around", file: "message/headers.go",
		from: "return int(min(max(n, 0), math.MaxInt32-1))", to: "return int(int32(n))",
		pkg: "message", test: "TestAttemptsOfHostileValues",
	},
	{
		name: "redrives do not turn around", file: "deadletter/republish.go",
		from: "min(max(f.redrives, 0), math.MaxInt64-1) + 1", to: "min(f.redrives, math.MaxInt64) + 1",
		pkg: "deadletter", test: "TestACountOfRedrivesNeverTurnsAround",
	},
	{
		name: "one holder at a time has a dead-letter queue", file: "deadletter/lock.go",
		from: "		if tag.RowsAffected() == 1 {\n", to: "		if tag.RowsAffected() <= 1 {\n",
		pkg: "deadletter", test: "TestLooksExcludeEachOther",
	},
	{
		name: "a redriven letter goes only when its copy is confirmed and routed", file: "deadletter/session.go",
		from: "		if r.Outcome == rabbit.Confirmed {\n", to: "		if r.Outcome == rabbit.Confirmed || r.Outcome == rabbit.Returned {\n",
		pkg: "deadletter", test: "TestRedriveKeepsTheLetterWhenTheTargetVanishes",
	},
	{
		name: "a queue that looks would empty is not looked at", file: "deadletter/safe.go",
		from: "case limit < minDeliveryLimit:", to: "case false:",
		pkg: "deadletter", test: "TestUnsafeQueuesAreNotLookedAt",
	},
	{
		name: "a run moves only what its plan chose", file: "deadletter/wave.go",
		from: "\tif !chosen {\n\t\treturn outcomeUnmatched\n", to: "\tif !chosen {\n\t\treturn outcomeChosen\n",
		pkg: "deadletter", test: "TestAPlanIsExactlyWhatIsDone",
	},
	{
		name: "a run leaves what died again since its plan", file: "deadletter/wave.go",
		from: "return outcomeChanged", to: "return outcomeChosen",
		pkg: "deadletter", test: "TestARunLeavesWhatHasChangedSinceThePlan",
	},
	{
		name: "a run moves a key in the plan's order", file: "deadletter/wave.go",
		from: "w.ahead[l.lane][0] < l.seq {", to: "w.ahead[l.lane][0] < 0 {",
		pkg: "deadletter", test: "TestARunMovesAKeyInThePlansOrder",
	},
	{
		name: "a wave gives up only on what a whole walk has not found", file: "deadletter/wave.go",
		from: "!whole && !w.done()", to: "false",
		pkg: "deadletter", test: "TestWavesFollowInAQueueThatIsNotAsItWasPlanned",
	},
	{
		name: "the next wave begins when the last one is found", file: "deadletter/runwaves.go",
		from: " || !o.chooser.wave.done() {", to: " {",
		pkg: "deadletter", test: "TestACopySinceThePlanLeavesNoLetterBehind",
	},
	{
		name: "who follows a dead driver looks at its last two waves", file: "deadletter/runwaves.go",
		from: "$2 - $3::boolean::integer", to: "$2 - 0 * $3::boolean::integer",
		pkg: "deadletter", test: "TestADriverThatFollowsLooksAtTheWaveBefore",
	},
	{
		name: "what follows a message of its key that died again is held", file: "deadletter/runwaves.go",
		from: "AND pending AND order_key = ANY($3)`", to: "AND pending AND order_key = ANY($3) AND false`",
		pkg: "deadletter", test: "TestARunKeepsTheOrderOfKeys",
	},
	{
		name: "a message is in one live run", file: "deadletter/run.go",
		from: "WHERE o.key = l.key AND o.run <> $2 AND o.state <> 'ineligible'", to: "WHERE false AND o.key = l.key AND o.run <> $2 AND o.state <> 'ineligible'",
		pkg: "deadletter", test: "TestOneLiveRunPerMessage",
	},
	{
		name: "a discard leaves a live run its messages", file: "deadletter/operation.go",
		from: "\tif !held {\n", to: "\tif !held || run != nil {\n",
		pkg: "deadletter", test: "TestMessagesOfALiveRunAreLeftToIt",
	},
	{
		name: "a discard looks for runs again before it lets go", file: "deadletter/operation.go",
		from: "o.also = o.stillFree", to: "o.also = nil",
		pkg: "deadletter", test: "TestADiscardStopsAtWhatARunHasGotMeanwhile",
	},
	{
		name: "a plan that is not whole is not carried out", file: "deadletter/runexec.go",
		from: "if current.unfinished() {", to: "if false {",
		pkg: "deadletter", test: "TestAPlanThatIsNotWholeIsNotCarriedOut",
	},
	{
		name: "what the inbox has is not redriven", file: "deadletter/runplan.go",
		from: "case handled[e.Key] && e.MessageID != \"\":", to: "case false:",
		pkg: "deadletter", test: "TestAPlanIsExactlyWhatIsDone",
	},
	{
		name: "what the inbox may have forgotten is not redriven", file: "deadletter/runplan.go",
		from: "case len(p.consumers) > 0 && !p.request.AllowReprocess", to: "case false && len(p.consumers) > 0 && !p.request.AllowReprocess",
		pkg: "deadletter", test: "TestAPlanIsExactlyWhatIsDone",
	},
	{
		name: "the canary must be processed", file: "deadletter/runsettle.go",
		from: "case failed > 0 && v.run.Wave == 1:", to: "case failed < 0:",
		pkg: "deadletter", test: "TestTheCanaryDecides",
	},
	{
		name: "a wave settles before the next begins", file: "deadletter/runsettle.go",
		from: "\t\tcase open == 0:\n", to: "\t\tcase open >= 0:\n",
		pkg: "deadletter", test: "TestACanaryThatIsNotProcessedPausesTheRun",
	},
	{
		name: "a run stops at too many failures", file: "deadletter/runsettle.go",
		from: "most >= 0 && failed > most {", to: "most >= 0 && failed > most+1000 {",
		pkg: "deadletter", test: "TestTheCanaryDecides",
	},
	{
		name: "a run that somebody drives is not taken over", file: "deadletter/runexec.go",
		from: "AND state = 'running' AND (token = $4 OR lease_until IS NULL OR lease_until < clock_timestamp())`", to: "AND state = 'running'`",
		pkg: "deadletter", test: "TestARunIsDrivenByOne",
	},
	{
		name: "a driver renews only its own lease", file: "deadletter/runexec.go",
		from: "WHERE id = $1 AND token = $2 RETURNING state`", to: "WHERE id = $1 AND $2::uuid IS NOT NULL RETURNING state`",
		pkg: "deadletter", test: "TestARunIsDrivenByOne",
	},
	{
		name: "what was recorded as moved is not moved again", file: "deadletter/wave.go",
		from: "if l.moved && l.only && l.diedAt != 0 && ", to: "if l.moved && l.only && l.diedAt < 0 && ",
		pkg: "deadletter", test: "TestWhatWasRecordedAsMovedIsNotMovedAgain",
	},
	{
		name: "a letter that may be a copy is not let go unmoved", file: "deadletter/wave.go",
		from: "l.moved && l.only && ", to: "l.moved && ",
		pkg: "deadletter", test: "TestWhatWasRecordedAsMovedIsNotMovedAgain",
	},
	{
		name: "a discard of an outbox row has a reason", file: "outbox/requests.go",
		from: `if r.Action == ActionDiscard && r.Reason == "" {`, to: "if false {",
		pkg: "outbox", test: "TestAskAndAwait",
	},
	{
		name: "a discard from the command line has a reason", file: "internal/cli/outboxact.go",
		from: `a.action != outbox.ActionDiscard || a.reason != ""}`, to: "true}",
		pkg: "internal/cli", test: "TestOutboxActsThatAreRefusedOrOnlyLookedAt",
	},
	{
		name: "a discard of dead letters has a reason", file: "deadletter/operation.go",
		from: `	if strings.TrimSpace(r.Reason) == "" {`, to: `	if strings.TrimSpace(r.Reason) == "none" {`,
		pkg: "deadletter", test: "TestDiscardNeedsAReasonAndDropsOnlyWhatMatches",
	},
	{
		name: "the audit bounds and escapes what it is given", file: "internal/audit/audit.go",
		from: "	if IsPlain(s) {\n", to: "	if true {\n",
		pkg: "internal/audit", test: "TestHostileTextIsWrittenInBounds",
	},
	{
		name: "an add that cannot tell its result says that it was done", file: "internal/cli/outboxadd.go",
		from: `return partly(fmt.Errorf("%d messages were enqueued; do not add them again: %w", got.Enqueued, err))`, to: "return err",
		pkg: "internal/cli", test: "TestOutboxAddThatCannotTellItsResult",
	},
	{
		name: "text from messages is escaped on a terminal", file: "internal/cli/render.go",
		from: "if cells[i] = Escape(cell, maxCell); cell == \"\" {", to: "if cells[i] = cell; cell == \"\" {",
		pkg: "internal/cli", test: "TestHostileDeliveriesHarmNobody",
	},
	{
		name: "no log line steers a terminal", file: "internal/telemetry/logger.go",
		from: "if bytes.ContainsFunc(line, steers) {", to: "if bytes.ContainsFunc(nil, steers) {",
		pkg: "internal/telemetry", test: "TestNoLogLineSteersATerminal",
	},
	{
		name: "a newer schema is refused", file: "internal/pg/migrate.go",
		from: "case version > Version():", to: "case false:",
		pkg: "internal/pg", test: "TestVersionsThatDoNotFit",
	},
	{
		name: "an older schema is refused", file: "internal/pg/migrate.go",
		from: "case version < Version():", to: "case false:",
		pkg: "internal/pg", test: "TestVersionsThatDoNotFit",
	},
	{
		name: "a lost prepared statement names the pooler", file: "internal/pg/migrate.go",
		from: "case isNotPrepared(err):", to: "case false:",
		pkg: "internal/pg", test: "TestPoolerOfAnOrdinaryPoolIsNamed",
	},
	{
		name: "commands refuse a schema of another version", file: "internal/cli/session.go",
		from: "if err := pg.CheckVersion(ctx, pool, c.Database.Schema); err != nil {", to: "if err := pg.CheckVersion(ctx, pool, c.Database.Schema); err != nil && false {",
		pkg: "internal/cli", test: "TestASchemaOfAnotherVersionIsLeftAlone",
	},
	{
		name: "the watchdog refuses a schema of another version", file: "watchdog/cycle.go",
		from: "if err := pg.CheckVersion(ctx, w.options.Pool, w.options.Schema); err != nil {", to: "if err := pg.CheckVersion(ctx, w.options.Pool, w.options.Schema); err != nil && false {",
		pkg: "watchdog", test: "TestASchemaOfAnotherVersionIsLeftAlone",
	},
	{
		name: "the watchdog looks at the row again before the change", file: "watchdog/compiled.go",
		from: "WHERE t.{key} = $3::text::{keytype} AND ` + stuckSQL + ` AND ` + freeSQL + `\nRETURNING",
		to:   "WHERE t.{key} = $3::text::{keytype} AND $1::text[] IS NOT NULL AND $2::interval IS NOT NULL AND ` + freeSQL + `\nRETURNING",
		pkg:  "watchdog", test: "TestLimitIsLookedAtAgainBeforeTheChange",
	},
	{
		name: "the watchdog looks for an operator's hold again before the change", file: "watchdog/compiled.go",
		from: " AND ` + freeSQL + `\nRETURNING", to: " AND $7::text IS NOT NULL\nRETURNING",
		pkg: "watchdog", test: "TestAHoldIsLookedAtAgainBeforeTheChange",
	},
	{
		name: "a pending request is not forgotten", file: "resilience/idempotency/clean.go",
		from: " AND NOT pending ORDER", to: " ORDER",
		pkg: "resilience/idempotency", test: "TestKeysAreForgottenAfterTheirRetentionUnlessTheyArePending",
	},
	{
		name: "another request under a key is refused", file: "resilience/idempotency/flight.go",
		from: "if err == nil && out.hash != in.hash {", to: "if false {",
		pkg: "resilience/idempotency", test: "TestAnotherRequestUnderTheKeyIsRefused",
	},
	{
		name: "a request commits only the transaction that it was given", file: "resilience/idempotency/transaction.go",
		from: " AND xmin = pg_current_xact_id()::xid", to: "",
		pkg: "resilience/idempotency", test: "TestTheTransactionIsTheStores",
	},
	{
		name: "a commit that was not answered is pending", file: "resilience/idempotency/transaction.go",
		from: "\t\tif in.unknown != nil {\n", to: "\t\tif false {\n",
		pkg: "resilience/idempotency", test: "TestACommitWithoutAnAnswerIsPendingAndThenFound",
	},
	{
		name: "an outcome is written once", file: "resilience/idempotency/transaction.go",
		from: " FOR UPDATE`", to: "`",
		pkg: "resilience/idempotency", test: "TestAnOutcomeIsWrittenOnce",
	},
	{
		name: "what may have had its effect is not asked for again", file: "resilience/idempotency/handler.go",
		from: "\tif out.replayed {\n", to: "\tif false {\n",
		pkg: "resilience/idempotency", test: "TestAnUnknownOutcomeStaysPendingUntilItIsResolved",
	},
	{
		name: "tries of one key hold one connection", file: "resilience/idempotency/flight.go",
		from: "; under {", to: "; under && false {",
		pkg: "resilience/idempotency", test: "TestManyTriesOfOneKeyHoldOneConnection",
	},
	{
		name: "a bucket is forgotten only when it is full", file: "resilience/httpserver/ratelimit.go",
		from: "\tif now.Sub(b.used) < l.idle {", to: "\tif false {",
		pkg: "resilience/httpserver", test: "TestMemoryIsBoundedForAnyNumberOfClients",
	},
	{
		name: "a header makes nobody another client", file: "resilience/httpserver/client.go",
		from: "err != nil || !trusted(peer.Addr().Unmap())", to: "err != nil",
		pkg: "resilience/httpserver", test: "TestAClientIsItsAddressUnlessToldOtherwise",
	},
	{
		name: "half an answer is cut", file: "resilience/httpserver/problem.go",
		from: "\t\t\tpanic(http.ErrAbortHandler)\n", to: "",
		pkg: "resilience/httpserver", test: "TestAFailureInTheMiddleOfAnAnswerCutsIt",
	},
	{
		name: "a confirm is told after the return before it", file: "internal/rabbit/tap.go",
		from: "\tn, err := t.read(p)\n", to: "\tn, err := t.read(p)\n\tt.tell()\n",
		pkg: "internal/rabbit", test: "TestATapTellsWhenTheLibraryAsksForMore",
	},
	{
		name: "deliveries alone keep a connection alive", file: "internal/rabbit/tap.go",
		from: "func (t *tap) overdue() bool { return ", to: "func (t *tap) overdue() bool { return false && ",
		pkg: "internal/rabbit", test: "TestDeliveriesAloneKeepAConnectionAlive",
	},
	{
		name: "what belongs to the broker again is not handed on", file: "internal/rabbit/subscription.go",
		from: "	for range s.deliveries {\n	}\n", to: "",
		pkg: "internal/rabbit", test: "TestWhatNobodyHasReceivedIsDroppedAtTheEnd",
	},
	{
		name: "nothing is written to a channel that is closed", file: "internal/rabbit/coalesce.go",
		from: "; over {", to: "; over && false {",
		pkg: "internal/rabbit", test: "TestPublishesGoBetweenTheLibrarysFrames",
	},
	{
		name: "a row is settled at its place only if it is the one", file: "relay/settle.go",
		from: " AND x.shard = w.shard AND x.id = w.id OFFSET 0", to: " OFFSET 0",
		pkg: "relay", test: "TestSettlingFindsMovedRows",
	},
	{
		name: "a plan of an empty table serves a full one", file: "relay/planned.go",
		from: ", set_config('enable_seqscan', 'off', true)", to: "",
		pkg: "relay", test: "TestThePlanOfAnEmptyTableServesAFullOne",
	},
	{
		name: "a wake serves who asks later", file: "relay/reader.go",
		from: "r.woken.After(r.read[a.shard])", to: "len(r.read) == 0",
		pkg: "relay", test: "TestAWakeServesWhoAsksLater",
	},
	{
		name: "the doorbell rests when producers queue for it", file: "relay/wake.go",
		from: "d.queue < queueMost {", to: "d.queue < queueMost || true {",
		pkg: "relay", test: "TestTheDoorbellRestsWhenProducersQueueForIt",
	},
	{
		name: "a doorbell that another relay silenced stays so", file: "relay/wake.go",
		from: " || time.Now().Before(d.muteUntil) {", to: " {",
		pkg: "relay", test: "TestADoorbellThatAnotherRelaySilencedStaysSo",
	},
	{
		name: "statistics choose no plan of the relay", file: "relay/planned.go",
		from: "\tbatch.Queue(settings)\n", to: "\tbatch.Queue(\"select 1\")\n",
		pkg: "relay", test: "TestHotStatementsKeepTheirGenericPlan",
	},
	{
		name: "a reconciliation acts only while it holds the claim", file: "reconcile/settle.go",
		from: "resolved_at = CASE WHEN $6::text IS NOT NULL THEN clock_timestamp() END\nWHERE rule = $1 AND key_hash = $2 AND run_id = $3 AND next_check > clock_timestamp()",
		to:   "resolved_at = CASE WHEN $6::text IS NOT NULL THEN clock_timestamp() END\nWHERE rule = $1 AND key_hash = $2 AND $3::uuid IS NOT NULL",
		pkg:  "reconcile", test: "TestWhoeverChangedTheRowFirstWins",
	},
	{
		name: "a suspect is changed only as it was seen", file: "reconcile/compiled.go",
		from: "AND t.{status} = $2::text::{statustype} AND {sinceguard}",
		to:   "AND $2::text IS NOT NULL AND $3::timestamptz IS NOT NULL",
		pkg:  "reconcile", test: "TestWhoeverChangedTheRowFirstWins",
	},
	{
		name: "of several claims of a suspect one holds", file: "reconcile/claim.go",
		from: "WHERE c.next_check <= clock_timestamp() OR c.since <> excluded.since",
		to:   "WHERE true",
		pkg:  "reconcile", test: "TestOfTwoThatFindASuspectOneClaimsIt",
	},
	{
		name: "a page in between is no answer", file: "reconcile/http.go",
		from: " && isJSON(refusal.Header, refusal.Body)",
		to:   " && isJSON(refusal.Header, refusal.Body) == isJSON(refusal.Header, refusal.Body)",
		pkg:  "reconcile", test: "TestWhatIsNoAnswerOverHTTP",
	},
	{
		name: "an answer that the rule does not name is none", file: "reconcile/cycle.go",
		from: "case !acts:",
		to:   "case !acts && stop == nil:",
		pkg:  "reconcile", test: "TestNoAnswerLeavesTheSuspectAndIsAskedForAgain",
	},
	{
		name: "the queries of a rule only read", file: "reconcile/authority.go",
		from: "AccessMode: pgx.ReadOnly",
		to:   "AccessMode: pgx.ReadWrite",
		pkg:  "reconcile", test: "TestQueriesOnlyRead",
	},
	{
		name: "a key leads to no other path", file: "reconcile/placeholder.go",
		from: "if strings.Trim(part, \".\") == \"\" {",
		to:   "if strings.Trim(part, \".\") == \"\\x00\" {",
		pkg:  "reconcile", test: "TestAKeyLeadsNowhereElse",
	},
}
