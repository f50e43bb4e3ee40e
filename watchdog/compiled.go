package watchdog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/usertable"
)

// The statements of a rule, with its quoted names put in by newCompiled: {table}, {key}, {status}, {clock},
// and the types {keytype} and {statustype} as the catalog writes them. Values are always parameters. They are
// cast to the columns' types, not the columns to text, so that indexes serve.
//
// $1 stuck statuses, $2 limit.
const (
	stuckSQL = `t.{status} = ANY ($1::text[]::{statustype}[]) AND t.{clock} < now() - $2::interval AND isfinite(t.{clock})`

	// An operator's hold keeps a row from the watchdog. {rule} is the parameter that names the rule.
	freeSQL = `NOT EXISTS (SELECT FROM @schema@.watchdog_holds AS h WHERE ` + holdSQL + `)`
	holdSQL = `h.rule = {rule} AND h.since = t.{clock} AND h.key_hash = sha256(convert_to(t.{key}::text, 'UTF8')) AND h.until > now()`

	// $3 rule.
	failureSQL = `f.rule = $3 AND f.since = t.{clock} AND f.key_hash = sha256(convert_to(t.{key}::text, 'UTF8'))`

	claimSQL = `
SELECT t.{key}::text, t.{status}::text, t.{clock} FROM {table} AS t
WHERE ` + stuckSQL + ` AND {due} AND ` + freeSQL + `
ORDER BY t.{clock} LIMIT $4 FOR UPDATE OF t SKIP LOCKED`

	// Rows that never failed come in the first lane, those whose next try is due in the second: the claim of
	// the first cannot be filled up by failing rows, however many there are. $5 is the start of the cycle, so
	// that no row is tried twice in one.
	freshSQL = `NOT EXISTS (SELECT FROM @schema@.watchdog_failures AS f WHERE ` + failureSQL + `) AND $5::timestamptz IS NOT NULL`
	againSQL = `EXISTS (SELECT FROM @schema@.watchdog_failures AS f WHERE ` + failureSQL + ` AND f.next_try <= $5::timestamptz)`

	// The guard: whoever changed the row since the claim (a trigger of another row of this batch, the other
	// rows of its key), or holds it since then, has won. The last column tells whether the change was undone by a trigger.
	// $3 key, $4 new status, $5 reason, $6 names of the payload, $7 rule.
	changeSQL = `
UPDATE {table} AS t SET {status} = $4::text::{statustype}{set}
WHERE t.{key} = $3::text::{keytype} AND ` + stuckSQL + ` AND ` + freeSQL + `
RETURNING t.{status}::text, jsonb_build_object({payload})::text, (` + stuckSQL + `), $5::text, $6::text[]`

	// $4 rule.
	stillStuckSQL = `SELECT EXISTS (SELECT FROM {table} AS t WHERE t.{key} = $3::text::{keytype} AND ` + stuckSQL + ` AND ` + freeSQL + `)`

	countSQL = `
SELECT count(*), coalesce(extract(epoch FROM now() - $2::interval - min(clock)), 0)::float8
FROM (SELECT t.{clock} AS clock FROM {table} AS t WHERE ` + stuckSQL + ` AND ` + freeSQL + ` ORDER BY t.{clock} LIMIT $3) AS overdue`

	// $2 limit less what is due soon, $3 rule, $4 limit, $5 keys or NULL, $6 states or NULL, $7 the most rows.
	listSQL = `
SELECT * FROM (
    SELECT t.{key}::text, t.{status}::text, t.{clock}, now() - $4::interval - t.{clock},
           CASE WHEN h.rule IS NOT NULL THEN 'held' WHEN t.{clock} >= now() - $4::interval THEN 'due-soon'
                WHEN f.rule IS NOT NULL THEN 'failing' ELSE 'overdue' END,
           coalesce(f.tries, 0), coalesce(f.error, ''), f.next_try, CASE WHEN isfinite(h.until) THEN h.until END, h.at, h.who, h.reason
    FROM {table} AS t LEFT JOIN @schema@.watchdog_failures AS f ON ` + failureSQL + ` LEFT JOIN @schema@.watchdog_holds AS h ON ` + holdSQL + `
    WHERE ` + stuckSQL + ` AND ($5::text[] IS NULL OR t.{key} = ANY ($5::text[]::{keytype}[]))
) AS l (key, status, clock, over, state, tries, error, next_try, until, at, who, reason)
WHERE $6::text[] IS NULL OR l.state = ANY ($6) ORDER BY l.clock LIMIT $7`

	// examineSQL reads the rows of a key, for an operator, whatever their status: first those that are stuck, or could become overdue. The
	// time is when a hold would end that extends the row. $3 key, $4 rule, $5 by how much to extend.
	examineSQL = `
SELECT t.{key}::text, t.{status}::text, CASE WHEN isfinite(t.{clock}) THEN t.{clock} ELSE 'epoch' END, coalesce(` + stuckSQL + `, false),
       coalesce(t.{status} = ANY ($1::text[]::{statustype}[]), false), coalesce(isfinite(t.{clock}), false),
       CASE WHEN isfinite(t.{clock}) THEN greatest(now(), CASE WHEN isfinite(h.until) THEN h.until END, t.{clock} + $2::interval) + $5::interval END,
       h.rule IS NOT NULL, coalesce(f.tries, 0), coalesce(f.error, '')
FROM {table} AS t
LEFT JOIN @schema@.watchdog_failures AS f ON f.rule = $4 AND f.since = t.{clock} AND f.key_hash = sha256(convert_to(t.{key}::text, 'UTF8'))
LEFT JOIN @schema@.watchdog_holds AS h ON ` + holdSQL + `
WHERE t.{key} = $3::text::{keytype} ORDER BY 5 DESC, t.{clock} LIMIT 2`
)

// compiled is a rule that fits its table, with its statements.
type compiled struct {
	Rule
	warnings                                               []string
	fresh, again, change, stillStuck, count, list, examine string
	// changeLimit is what the change asks of the clock: Limit, unless an operator wants it before that.
	changeLimit time.Duration
	// fields are the names in the payload, in the order of the statement.
	fields []string
}

func newCompiled(r Rule, look *usertable.Look, warnings []string, schema string) *compiled {
	table, _ := usertable.ParseName(r.Table) // checked by New
	quoted := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	names := []string{
		"{table}", table.Sanitize(), "{key}", quoted(r.Key), "{status}", quoted(r.Status), "{clock}", quoted(r.Clock),
		"{keytype}", look.Type(r.Key), "{statustype}", look.Type(r.Status),
	}
	c := &compiled{Rule: r, changeLimit: r.Limit, warnings: warnings, fields: slices.Sorted(maps.Keys(r.Payload))}
	var set, payload strings.Builder
	if r.ReasonColumn != "" {
		fmt.Fprintf(&set, ", %s = $5::text::%s", quoted(r.ReasonColumn), look.Type(r.ReasonColumn))
	}
	if r.ChangedColumn != "" {
		fmt.Fprintf(&set, ", %s = now()", quoted(r.ChangedColumn))
	}
	for n, field := range c.fields {
		if n > 0 {
			payload.WriteString(", ")
		}
		fmt.Fprintf(&payload, "($6::text[])[%d], t.%s", n+1, quoted(r.Payload[field]))
	}
	// One pass over our own text: a name that looks like a placeholder is never looked at again.
	fill := func(statement string, more ...string) string {
		inSchema := pg.SQL(statement).In(schema)
		return strings.NewReplacer(append(more, names...)...).Replace(inSchema)
	}
	c.fresh = fill(strings.Replace(claimSQL, "{due}", freshSQL, 1), "{rule}", "$3")
	c.again = fill(strings.Replace(claimSQL, "{due}", againSQL, 1), "{rule}", "$3")
	c.change = fill(changeSQL, "{rule}", "$7", "{set}", set.String(), "{payload}", payload.String())
	c.stillStuck, c.count = fill(stillStuckSQL, "{rule}", "$4"), fill(countSQL, "{rule}", "$4")
	c.list, c.examine = fill(listSQL, "{rule}", "$3"), fill(examineSQL, "{rule}", "$4")
	return c
}
