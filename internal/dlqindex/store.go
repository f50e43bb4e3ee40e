package dlqindex

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	queueSQL pg.SQL = `
INSERT INTO @schema@.dlq_queues AS q (vhost, queue) VALUES ($1, $2)
ON CONFLICT (vhost, queue) DO UPDATE SET queue = q.queue RETURNING id`

	groupsSQL pg.SQL = `
INSERT INTO @schema@.dlq_groups AS g (queue_id, type, class, fingerprint, error_type, error_message, version, first_seen, last_seen)
SELECT $1, e.type, e.class, e.fingerprint, e.error_type, e.error_message, e.version,
       coalesce(e.first_seen, clock_timestamp()), coalesce(e.last_seen, clock_timestamp())
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::timestamptz[], $9::timestamptz[])
     AS e(type, class, fingerprint, error_type, error_message, version, first_seen, last_seen)
ON CONFLICT (queue_id, type, class, fingerprint) DO UPDATE SET
    first_seen = least(g.first_seen, EXCLUDED.first_seen), last_seen = greatest(g.last_seen, EXCLUDED.last_seen),
    version = CASE WHEN EXCLUDED.last_seen >= g.last_seen THEN EXCLUDED.version ELSE g.version END`

	// lettersSQL adds entries. An entry that is no newer than its row has been written before, or comes late: it changes
	// nothing, and brings nothing back that has gone meanwhile.
	lettersSQL pg.SQL = insertLetters + `
ON CONFLICT (queue_id, key) DO UPDATE SET
    group_id = EXCLUDED.group_id, version = EXCLUDED.version, died_at = EXCLUDED.died_at, dated = true, ` + lives + `,
    copies = CASE WHEN l.gone_at IS NULL THEN l.copies + EXCLUDED.copies ELSE EXCLUDED.copies END,
    gone_at = NULL, gone = '', indexed_at = clock_timestamp()
WHERE EXCLUDED.dated AND (EXCLUDED.died_at > l.died_at OR NOT l.dated)`

	// seenSQL adds what a scan sees: the queue's own word, whatever the row says, unless that is of this scan too, or was
	// indexed since it began and is newer.
	seenSQL pg.SQL = insertLetters + `
ON CONFLICT (queue_id, key) DO UPDATE SET
    group_id = CASE WHEN ` + speaks + ` THEN EXCLUDED.group_id ELSE l.group_id END,
    version = CASE WHEN ` + speaks + ` THEN EXCLUDED.version ELSE l.version END,
    died_at = CASE WHEN ` + speaks + ` AND (EXCLUDED.dated OR l.dated) THEN EXCLUDED.died_at ELSE l.died_at END,
    dated = CASE WHEN ` + speaks + ` THEN EXCLUDED.dated ELSE l.dated END, ` + lives + `,
    copies = CASE WHEN l.scan = EXCLUDED.scan THEN l.copies + EXCLUDED.copies ELSE EXCLUDED.copies END,
    scan = EXCLUDED.scan, gone_at = NULL, gone = '', indexed_at = clock_timestamp()`

	speaks = `(l.scan <> EXCLUDED.scan AND l.indexed_at < $13 OR EXCLUDED.died_at >= l.died_at)`

	insertLetters = `
INSERT INTO @schema@.dlq_letters AS l (queue_id, key, group_id, message_id, copies, died_at, dated, version, redrives, redrive_run, scan)
SELECT $1, e.key, g.id, e.message_id, e.copies, coalesce(e.died_at, clock_timestamp()), e.died_at IS NOT NULL, e.version, e.redrives, e.run, $12
FROM unnest($2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int[], $8::timestamptz[], $9::text[], $10::int[], $11::uuid[])
     AS e(key, message_id, type, class, fingerprint, copies, died_at, version, redrives, run)
JOIN @schema@.dlq_groups g ON g.queue_id = $1 AND g.type = e.type AND g.class = e.class AND g.fingerprint = e.fingerprint
ORDER BY e.key`

	// lives keeps what a row says of the failure before the last redrive.
	lives = `
    redrives = greatest(EXCLUDED.redrives, l.redrives),
    redrive_run = CASE WHEN EXCLUDED.redrives >= l.redrives THEN EXCLUDED.redrive_run ELSE l.redrive_run END,
    previous_group = CASE WHEN EXCLUDED.redrives > l.redrives THEN l.group_id ELSE l.previous_group END,
    previous_died_at = CASE WHEN EXCLUDED.redrives > l.redrives THEN l.died_at ELSE l.previous_died_at END,
    previous_version = CASE WHEN EXCLUDED.redrives > l.redrives THEN l.version ELSE l.previous_version END`

	beginScanSQL pg.SQL = `
UPDATE @schema@.dlq_queues SET scan = scan + 1, scan_began = clock_timestamp() WHERE id = $1 RETURNING scan, scan_began`

	// vanishedSQL marks what a whole scan did not see. What was indexed since it began may have come behind its end.
	vanishedSQL pg.SQL = `
WITH held AS MATERIALIZED (
    SELECT key FROM @schema@.dlq_letters WHERE queue_id = $1 AND scan <> $2 AND indexed_at < $3 AND gone_at IS NULL ORDER BY key FOR UPDATE
)
UPDATE @schema@.dlq_letters l SET gone_at = clock_timestamp(), gone = 'vanished', copies = 0
FROM held WHERE l.queue_id = $1 AND l.key = held.key AND l.scan <> $2 AND l.indexed_at < $3 AND l.gone_at IS NULL`

	endScanSQL pg.SQL = `
UPDATE @schema@.dlq_queues SET scan_note = $3, scan_seconds = extract(epoch FROM clock_timestamp() - scan_began),
    scanned_at = CASE WHEN $3 = '' THEN clock_timestamp() ELSE scanned_at END
WHERE id = $1 AND scan = $2`

	goneSQL pg.SQL = namedLetters + `
UPDATE @schema@.dlq_letters l SET copies = greatest(l.copies - e.n, 0),
    gone_at = CASE WHEN l.copies <= e.n THEN clock_timestamp() END, gone = CASE WHEN l.copies <= e.n THEN $4 ELSE '' END
FROM held JOIN e ON e.key = held.key WHERE l.queue_id = held.queue_id AND l.key = held.key AND l.gone_at IS NULL`

	// namedLetters locks the rows of keys in the order in which all writers take them: another one makes deadlocks, and a redrive that has
	// one moves nothing more.
	namedLetters = `
WITH e AS (SELECT key, count(*)::int AS n FROM unnest($2::uuid[]) AS k(key) GROUP BY key),
held AS MATERIALIZED (
    SELECT queue_id, key FROM @schema@.dlq_letters
    WHERE queue_id = (SELECT id FROM @schema@.dlq_queues WHERE vhost = $1 AND queue = $3) AND key = ANY ($2::uuid[]) ORDER BY key FOR UPDATE
)`
)

// backSQL is for what was put back: whatever the row says, a copy of it is there now.
const backSQL pg.SQL = namedLetters + `
UPDATE @schema@.dlq_letters l SET copies = l.copies + e.n, gone_at = NULL, gone = '', indexed_at = clock_timestamp()
FROM held JOIN e ON e.key = held.key WHERE l.queue_id = held.queue_id AND l.key = held.key`

// Store writes the index. Make it with [New]. Safe for concurrent use.
type Store struct {
	pool                                                                      *pgxpool.Pool
	queue, groups, letters, seen, beginScan, vanished, endScan, goneSQL, back string
}

// New does no I/O.
func New(pool *pgxpool.Pool, schema string) *Store {
	return &Store{
		pool: pool, queue: queueSQL.In(schema), groups: groupsSQL.In(schema), letters: lettersSQL.In(schema), seen: seenSQL.In(schema),
		beginScan: beginScanSQL.In(schema), vanished: vanishedSQL.In(schema), endScan: endScanSQL.In(schema), goneSQL: goneSQL.In(schema), back: backSQL.In(schema),
	}
}

// Queue returns the number of a queue in the index, and gives it one.
func (s *Store) Queue(ctx context.Context, vhost, queue string) (id int32, err error) {
	if err := s.pool.QueryRow(ctx, s.queue, vhost, queue).Scan(&id); err != nil {
		return 0, fmt.Errorf("index of dead letters: %w", err)
	}
	return id, nil
}

// Died adds letters that have died now, in one transaction of two statements. It may be called again after an error.
func (s *Store) Died(ctx context.Context, queue int32, entries []Entry) error {
	return s.write(ctx, s.letters, queue, entries, int64(0))
}

// write adds entries; more are the arguments of letters beyond what an entry holds.
func (s *Store) write(ctx context.Context, letters string, queue int32, entries []Entry, more ...any) error {
	if len(entries) == 0 {
		return nil
	}
	entries = merge(entries)
	slices.SortFunc(entries, func(a, b Entry) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, s.groups, groupArgs(queue, entries)...); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, letters, append(letterArgs(queue, entries), more...)...)
		return err
	})
	if err != nil {
		return fmt.Errorf("index dead letters: %w", err)
	}
	return nil
}

// groupArgs are the distinct groups in one order, so that two writers do not deadlock over them.
func groupArgs(queue int32, entries []Entry) []any {
	type group struct {
		example     Entry
		first, last time.Time
	}
	groups := map[[3]string]group{}
	for _, e := range entries {
		id := [3]string{e.Type, e.Class, e.Fingerprint}
		g, there := groups[id]
		if !there {
			g = group{example: e, first: e.DiedAt, last: e.DiedAt}
		}
		if e.DiedAt.Before(g.first) {
			g.first = e.DiedAt
		}
		if e.DiedAt.After(g.last) {
			g.last, g.example = e.DiedAt, e
		}
		groups[id] = g
	}
	ordered := make([]group, 0, len(groups))
	for _, g := range groups {
		ordered = append(ordered, g)
	}
	slices.SortFunc(ordered, func(a, b group) int {
		return cmp.Or(cmp.Compare(a.example.Type, b.example.Type), cmp.Compare(a.example.Class, b.example.Class),
			cmp.Compare(a.example.Fingerprint, b.example.Fingerprint))
	})
	var texts [6][]string
	var firsts, lasts []*time.Time
	for _, g := range ordered {
		e := g.example
		for i, text := range []string{e.Type, e.Class, e.Fingerprint, e.ErrorType, e.ErrorMessage, e.Version} {
			texts[i] = append(texts[i], text)
		}
		firsts, lasts = append(firsts, orNull(g.first)), append(lasts, orNull(g.last))
	}
	return []any{queue, texts[0], texts[1], texts[2], texts[3], texts[4], texts[5], firsts, lasts}
}

func letterArgs(queue int32, entries []Entry) []any {
	var (
		keys             []uuid.UUID
		texts            [5][]string
		copies, redrives []int32
		died             []*time.Time
		runs             []uuid.NullUUID
	)
	for _, e := range entries {
		for i, text := range []string{e.MessageID, e.Type, e.Class, e.Fingerprint, e.Version} {
			texts[i] = append(texts[i], text)
		}
		keys, copies, redrives = append(keys, e.Key), append(copies, int32(e.Copies)), append(redrives, int32(e.Redrives))
		died, runs = append(died, orNull(e.DiedAt)), append(runs, e.Run)
	}
	return []any{queue, pg.UUIDs(keys), texts[0], texts[1], texts[2], texts[3], copies, died, texts[4], redrives, pg.NullUUIDs(runs)}
}

func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// Gone marks letters that leave the queue for a reason of ours; a key that is named twice is two copies. In the transaction of the
// record of why. Should they not leave after all, the next scan brings them back.
func (s *Store) Gone(ctx context.Context, tx pgx.Tx, vhost, queue, how string, keys []uuid.UUID) error {
	if len(keys) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, s.goneSQL, vhost, pg.UUIDs(keys), queue, how); err != nil {
		return fmt.Errorf("index dead letters that have gone: %w", err)
	}
	return nil
}

// Back marks letters that were put back into the queue as there. Those without a row are found by the next scan.
func (s *Store) Back(ctx context.Context, tx pgx.Tx, vhost, queue string, keys []uuid.UUID) error {
	if _, err := tx.Exec(ctx, s.back, vhost, pg.UUIDs(keys), queue); err != nil {
		return fmt.Errorf("index dead letters that are back: %w", err)
	}
	return nil
}

// Scan is one pass over a dead-letter queue. One goroutine uses it.
type Scan struct {
	store  *Store
	queue  int32
	number int64
	began  time.Time
}

// Begin begins a scan. It must come before the queue is first looked at, and only one goes on at a time in a queue.
func (s *Store) Begin(ctx context.Context, vhost, queue string) (*Scan, error) {
	id, err := s.Queue(ctx, vhost, queue)
	if err != nil {
		return nil, err
	}
	scan := &Scan{store: s, queue: id}
	if err := s.pool.QueryRow(ctx, s.beginScan, id).Scan(&scan.number, &scan.began); err != nil {
		return nil, fmt.Errorf("begin scan of dead letters: %w", err)
	}
	return scan, nil
}

// Seen adds what the scan saw; each letter once.
func (s *Scan) Seen(ctx context.Context, entries []Entry) error {
	return s.store.write(ctx, s.store.seen, s.queue, entries, s.number, s.began)
}

// Complete marks what the scan did not see as vanished, and returns how many messages that are.
func (s *Scan) Complete(ctx context.Context) (vanished int, err error) {
	err = pgx.BeginFunc(ctx, s.store.pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, s.store.vanished, s.queue, s.number, s.began)
		if err != nil {
			return err
		}
		vanished = int(tag.RowsAffected())
		_, err = tx.Exec(ctx, s.store.endScan, s.queue, s.number, "")
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("end scan of dead letters: %w", err)
	}
	return vanished, nil
}

// Break ends a scan that has not seen everything: nothing is marked.
func (s *Scan) Break(ctx context.Context, why string) error {
	if _, err := s.store.pool.Exec(ctx, s.store.endScan, s.queue, s.number, why); err != nil {
		return fmt.Errorf("end scan of dead letters: %w", err)
	}
	return nil
}
