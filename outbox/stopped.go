package outbox

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

const (
	// goesTo says that a row x of the outbox goes the way that a stopped route s says.
	goesTo = `s.shard = x.shard AND (x.exchange = s.exchange OR x.exchange = '' AND s.is_default)
AND (s.whole_exchange OR s.routing_key = CASE WHEN x.routing_key = '' THEN x.type ELSE x.routing_key END)`

	// listStoppedSQL counts waiting rows among the first 100,000 of the outbox.
	listStoppedSQL pg.SQL = `
WITH looked AS MATERIALIZED (
    SELECT shard, exchange, routing_key, type, count(*) AS rows FROM (
        SELECT shard, exchange, routing_key, CASE WHEN routing_key = '' THEN type ELSE '' END AS type
        FROM @schema@.outbox WHERE EXISTS (SELECT FROM @schema@.outbox_stopped) LIMIT 100000) o
    GROUP BY shard, exchange, routing_key, type
)
SELECT s.exchange, s.routing_key, s.whole_exchange, min(s.since), (array_agg(s.error ORDER BY s.since))[1],
       coalesce(sum(x.rows), 0)::bigint, (SELECT coalesce(sum(rows), 0) >= 100000 FROM looked)
FROM @schema@.outbox_stopped s LEFT JOIN looked x ON ` + goesTo + `
GROUP BY s.exchange, s.routing_key, s.whole_exchange ORDER BY min(s.since), s.exchange, s.routing_key LIMIT $1`

	// stoppedRowsSQL reads the whole outbox when few rows match.
	stoppedRowsSQL pg.SQL = `
SELECT x.shard, x.id, x.message_id, x.type, x.key, x.exchange, x.routing_key, 'stopped', 0, 'route stopped', s.error, x.created_at,
       s.since, NULL::timestamptz, NULL::timestamptz, octet_length(x.payload)
FROM @schema@.outbox x CROSS JOIN LATERAL (
    SELECT s.since, s.error FROM @schema@.outbox_stopped s WHERE ` + goesTo + ` ORDER BY s.since LIMIT 1) s
WHERE EXISTS (SELECT FROM @schema@.outbox_stopped)
  AND ($1 = '' OR x.key = $1) AND ($2 = '' OR x.type = $2) AND ($3::text[] IS NULL OR x.message_id = ANY ($3))
ORDER BY x.shard, x.id LIMIT $4`

	// whySQL finds everything that a pending row waits for, but its turn.
	whySQL pg.SQL = `
WITH x AS MATERIALIZED (SELECT * FROM @schema@.outbox WHERE shard = $1 AND id = $2),
stopped AS (SELECT s.* FROM x CROSS JOIN LATERAL (
    SELECT s.error, s.since FROM @schema@.outbox_stopped s WHERE ` + goesTo + ` ORDER BY s.since LIMIT 1) s),
parked AS (SELECT p.message_id, p.parked_at FROM x JOIN @schema@.outbox_parked p
    ON p.shard = x.shard AND p.hash = x.hash AND p.key = x.key AND p.id < x.id WHERE x.key <> '' ORDER BY p.id LIMIT 1),
before AS (SELECT x.message_id, s.since FROM x AS later JOIN @schema@.outbox x
    ON x.shard = later.shard AND x.id < later.id AND x.hash = later.hash AND x.key = later.key
    JOIN @schema@.outbox_stopped s ON ` + goesTo + ` WHERE later.key <> '' AND NOT EXISTS (SELECT FROM stopped) ORDER BY x.id LIMIT 1)
SELECT 'relay', '', NULL::timestamptz WHERE NOT EXISTS (SELECT FROM @schema@.outbox_members WHERE expires_at > clock_timestamp())
UNION ALL SELECT 'route', error, since FROM stopped
UNION ALL SELECT 'parked', message_id, parked_at FROM parked
UNION ALL SELECT 'before', message_id, since FROM before`
)

// StateStopped is a row that waits in the outbox because its route is stopped: no queue is bound, or the broker does not
// take it. It is tried again by itself, every few seconds, for ever; it can be discarded.
const StateStopped = "stopped"

// StoppedRoute is a route whose rows wait, as the relays that run, or ran last, see it.
type StoppedRoute struct {
	Exchange string `json:"exchange"`
	// RoutingKey is empty when WholeExchange is set.
	RoutingKey string `json:"routing_key"`
	// WholeExchange says that the exchange is missing or forbidden.
	WholeExchange bool      `json:"whole_exchange"`
	Since         time.Time `json:"since"`
	// Error is why it was stopped, at most 1 KiB.
	Error string `json:"error"`
	// Waiting rows of the route. Exact while the outbox has fewer than 100,000 rows; beyond, AtLeast is set.
	Waiting int64 `json:"waiting"`
	AtLeast bool  `json:"at_least"`
}

// ListStopped returns up to limit stopped routes, the longest stopped first. Of each shard at most 500 are known.
func ListStopped(ctx context.Context, db Querier, schema string, limit int) ([]StoppedRoute, error) {
	return collect(ctx, db, "list stopped routes", schema, listStoppedSQL, pgx.RowToStructByPos[StoppedRoute], limit)
}

// ListStoppedRows returns rows of stopped routes, in the order of their shard and row, with [StateStopped]; ParkedAt is
// when the route was stopped. The filter's State is not looked at. It may read the whole outbox.
func ListStoppedRows(ctx context.Context, db Querier, schema string, f Filter) ([]Parked, error) {
	return collect(ctx, db, "list rows of stopped routes", schema, stoppedRowsSQL, pgx.RowToStructByPos[Parked], f.Key, f.Type, f.IDs, f.Limit)
}

// WhyPending says in words what a row of the outbox waits for; empty: its turn. It may read the whole outbox.
func WhyPending(ctx context.Context, db Querier, schema string, shard int16, row int64) (string, error) {
	reasons, err := collect(ctx, db, "look why a row waits", schema, whySQL, func(row pgx.CollectableRow) (string, error) {
		var kind, text string
		var since *time.Time
		if err := row.Scan(&kind, &text, &since); err != nil {
			return "", err
		}
		return reasonText(kind, text, since), nil
	}, shard, row)
	return strings.Join(reasons, "; "), err
}

func reasonText(kind, text string, since *time.Time) string {
	at := ""
	if since != nil {
		at = since.UTC().Format(time.RFC3339)
	}
	switch kind {
	case "route":
		return "its route is stopped since " + at + ": " + text
	case "parked":
		return "message " + text + " of its key comes first (unless relay.on_poison is skip) and is parked since " + at
	case "before":
		return "message " + text + " of its key comes first, whose route is stopped since " + at
	}
	return "no relay is running"
}
