package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	// The claim. Of several replicas that have found the same suspects, each gets those whose row it writes first: the others then see
	// a next_check that lies ahead. In the order of the hashes, so that two of them cannot deadlock.
	// $1 rule, $2 run, $3 lease.
	claimSQL pg.SQL = `
INSERT INTO @schema@.reconcile_suspects AS c (rule, key_hash, key, since, run_id, next_check)
SELECT $1, f.hash, f.key, f.since, $2, clock_timestamp() + $3::interval
FROM unnest($4::bytea[], $5::text[], $6::timestamptz[]) AS f (hash, key, since) ORDER BY f.hash
ON CONFLICT (rule, key_hash) DO UPDATE SET
    key = excluded.key, since = excluded.since, run_id = excluded.run_id, next_check = excluded.next_check,
    checks = CASE WHEN c.since = excluded.since THEN c.checks ELSE 0 END,
    misses = CASE WHEN c.since = excluded.since THEN c.misses ELSE 0 END,
    answer = CASE WHEN c.since = excluded.since THEN c.answer END,
    error = CASE WHEN c.since = excluded.since THEN c.error END,
    checked_at = CASE WHEN c.since = excluded.since THEN c.checked_at END,
    resolved_at = NULL, new_status = NULL, event_id = NULL
WHERE c.next_check <= clock_timestamp() OR c.since <> excluded.since
RETURNING key_hash`

	// What was claimed and not asked about is free again. $1 rule, $2 run, $3 hashes.
	releaseSQL pg.SQL = `
UPDATE @schema@.reconcile_suspects SET next_check = clock_timestamp()
WHERE rule = $1 AND run_id = $2 AND key_hash = ANY ($3) AND next_check > clock_timestamp()`
)

// claimed is a suspect that this run alone may act on until its lease ends.
type claimed struct {
	Suspect
	hash []byte
}

// maxColumnBytes bounds what a rule's query may bring along of one row.
const maxColumnBytes = 64 << 10

// find looks for suspects that are due, in a read-only transaction: the rule's query is the user's.
func (r *Reconciler) find(ctx context.Context, c *compiled, start time.Time, most int) ([]claimed, error) {
	var found []claimed
	err := pgx.BeginTxFunc(ctx, r.options.Pool, readOnly(), func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, c.find, c.arguments(c.Name, start, most)...) // its error is that of the rows
		all, err := pgx.CollectRows(rows, scanSuspect(c.Name))
		found = all
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find suspects: %w", err)
	}
	return found, nil
}

func scanSuspect(rule string) pgx.RowToFunc[claimed] {
	return func(row pgx.CollectableRow) (claimed, error) {
		s := claimed{Suspect: Suspect{Rule: rule}}
		var columns []byte
		if err := row.Scan(&s.Key, &s.Status, &s.Since, &columns); err != nil {
			return s, err
		}
		if len(columns) > maxColumnBytes {
			return s, fmt.Errorf("the columns of suspect %q have %d bytes, more than %d: name fewer", message.Clip(s.Key, maxText), len(columns), maxColumnBytes)
		}
		hash := sha256.Sum256([]byte(s.Key))
		s.hash = hash[:]
		return s, json.Unmarshal(columns, &s.Columns)
	}
}

// claim finds suspects and takes those that no other replica has taken meanwhile. It returns how many were found, too.
func (r *Reconciler) claim(ctx context.Context, c *compiled, run uuid.UUID, start time.Time) (taken []claimed, found int, err error) {
	suspects, err := r.find(ctx, c, start, r.options.Batch)
	if err != nil || len(suspects) == 0 {
		return nil, 0, err
	}
	unique := make(map[string]claimed, len(suspects))
	for _, s := range suspects {
		unique[string(s.hash)] = s
	}
	var hashes [][]byte
	var keys []string
	var sinces []time.Time
	for _, s := range unique {
		hashes, keys, sinces = append(hashes, s.hash), append(keys, message.Clip(s.Key, maxText)), append(sinces, s.Since)
	}
	rows, _ := r.options.Pool.Query(ctx, claimSQL.In(r.options.Schema), c.Name, run, r.options.lease(), hashes, keys, sinces) // its error is that of the rows
	won, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return nil, 0, fmt.Errorf("claim suspects: %w", err)
	}
	for _, hash := range won {
		taken = append(taken, unique[string(hash)])
	}
	slices.SortFunc(taken, func(a, b claimed) int { return a.Since.Compare(b.Since) })
	return taken, len(suspects), fault.Point("reconcile.after-claim")
}

// release gives back what was claimed and not asked about.
func (r *Reconciler) release(ctx context.Context, c *compiled, run uuid.UUID, suspects []claimed) error {
	if len(suspects) == 0 {
		return nil
	}
	hashes := make([][]byte, len(suspects))
	for i, s := range suspects {
		hashes[i] = s.hash
	}
	if _, err := r.options.Pool.Exec(ctx, releaseSQL.In(r.options.Schema), c.Name, run, hashes); err != nil {
		return fmt.Errorf("release suspects: %w", err)
	}
	return nil
}
