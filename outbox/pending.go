package outbox

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

// StateWaiting is a pending row that waits for something else than its turn: for its stopped route, or for an earlier message of its key
// that is parked or whose route is stopped.
const StateWaiting = "waiting"

// Why a pending row is still there; see [ListPending].
const (
	ReasonTurn         = "its turn"
	ReasonRoute        = "route stopped"
	ReasonBehindParked = "behind a parked message"
	ReasonBehindRoute  = "behind a stopped route"
)

// pendingSQL finds the first thing that each row waits for. What stands behind stopped routes is found once for all rows; without a stopped
// route that costs nothing.
const pendingSQL pg.SQL = `
WITH behind AS MATERIALIZED (
    SELECT x.shard, x.hash, x.key, min(x.id) AS id, min(s.since) AS since FROM @schema@.outbox x JOIN @schema@.outbox_stopped s ON ` + goesTo + `
    WHERE EXISTS (SELECT FROM @schema@.outbox_stopped) AND x.key <> '' GROUP BY x.shard, x.hash, x.key
)
SELECT x.shard, x.id, x.message_id, x.type, x.key, x.exchange, x.routing_key, CASE WHEN w.reason IS NULL THEN 'pending' ELSE 'waiting' END,
       0, coalesce(w.reason, 'its turn'), coalesce(w.detail, ''), x.created_at, coalesce(w.since, x.created_at),
       NULL::timestamptz, NULL::timestamptz, octet_length(x.payload)
FROM @schema@.outbox x LEFT JOIN LATERAL (
    (SELECT 'route stopped' AS reason, s.error AS detail, s.since FROM @schema@.outbox_stopped s WHERE ` + goesTo + ` ORDER BY s.since LIMIT 1)
    UNION ALL
    (SELECT 'behind a parked message', p.message_id, p.parked_at FROM @schema@.outbox_parked p
     WHERE x.key <> '' AND p.shard = x.shard AND p.hash = x.hash AND p.key = x.key AND p.id < x.id ORDER BY p.id LIMIT 1)
    UNION ALL
    (SELECT 'behind a stopped route', (SELECT message_id FROM @schema@.outbox f WHERE f.shard = b.shard AND f.id = b.id), b.since FROM behind b
     WHERE b.shard = x.shard AND b.hash = x.hash AND b.key = x.key AND b.id < x.id)
    LIMIT 1) w ON true
WHERE ($1 = '' OR x.key = $1) AND ($2 = '' OR x.type = $2) AND ($3::text[] IS NULL OR x.message_id = ANY ($3)) AND (NOT $4 OR w.reason IS NOT NULL)
ORDER BY x.shard, x.id LIMIT $5`

// ListPending returns rows that were not published yet, in the order of their shard and row, with what each waits for as its Reason: its turn,
// its stopped route (Error says why that is), or an earlier message of its key (whose id is in Error), unless relay.on_poison is skip. ParkedAt
// is since when it waits. Its State is [StatePending] while it is its turn, else [StateWaiting]; of the filter's, only that one chooses. It
// may read the whole outbox.
func ListPending(ctx context.Context, db Querier, schema string, f Filter) ([]Parked, error) {
	return collect(ctx, db, "list pending rows", schema, pendingSQL, pgx.RowToStructByPos[Parked], f.Key, f.Type, f.IDs, f.State == StateWaiting, f.Limit)
}
