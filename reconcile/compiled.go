package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/usertable"
)

// The statements of a rule, with its quoted names put in by newCompiled. Values are always parameters. They are cast to the columns'
// types, not the columns to text, so that indexes serve.
const (
	// $1 statuses, $2 age.
	tableSuspectsSQL = `
SELECT t.{key}::text AS key, t.{status}::text AS status, t.{clock} AS since, jsonb_build_object({columns}) AS columns
FROM {table} AS t
WHERE t.{status} = ANY ($1::text[]::{statustype}[]) AND t.{clock} < now() - $2::interval AND isfinite(t.{clock})`

	// A line break before the bracket: a query may end in a comment.
	querySuspectsSQL = `
SELECT q.key::text AS key, q.status::text AS status, q.since::timestamptz AS since, to_jsonb(q) - '{key,status,since}'::text[] AS columns
FROM ({query}
) AS q
WHERE $1::text[] IS NULL AND $2::interval IS NULL AND q.key IS NOT NULL AND q.status IS NOT NULL AND isfinite(q.since::timestamptz)`

	// $3 rule.
	joinedSQL = `
FROM ({suspects}) AS s
LEFT JOIN @schema@.reconcile_suspects AS c ON c.rule = $3 AND c.since = s.since AND c.key_hash = sha256(convert_to(s.key, 'UTF8'))`

	// Those that were never asked about come first, then whoever has been due for longest. $4 is the start of the cycle, so that none
	// is asked about twice in one; $5 how many.
	findSQL = `
SELECT s.key, s.status, s.since, s.columns::text` + joinedSQL + `
WHERE c.next_check IS NULL OR c.next_check <= $4::timestamptz
ORDER BY c.next_check NULLS FIRST, s.since LIMIT $5`

	countSQL = `
SELECT count(*), coalesce(extract(epoch FROM now() - min(since)), 0)::float8, count(*) FILTER (WHERE misses > 0)
FROM (SELECT s.since, c.misses` + joinedSQL + ` LIMIT $4) AS counted`

	listSQL = `
SELECT s.key, s.status, s.since, coalesce(c.checks, 0), coalesce(c.misses, 0), coalesce(c.answer, ''), coalesce(c.error, ''), c.checked_at,
       c.next_check, coalesce(c.next_check <= clock_timestamp(), true), c.run_id::text` + joinedSQL + `
ORDER BY c.next_check NULLS FIRST, s.since LIMIT $4`

	// $1 key, $2 status that was seen, $3 since.
	seenSQL = `t.{key} = $1::text::{keytype} AND t.{status} = $2::text::{statustype} AND {sinceguard}`

	// The compare-and-swap. The first column returned tells whether a trigger has undone the change. $4 new status, $5 reason.
	changeSQL = `
UPDATE {table} AS t SET {status} = $4::text::{statustype}{set}
WHERE ` + seenSQL + `
RETURNING t.{status} IS DISTINCT FROM $4::text::{statustype}, $5::text`

	stillSQL = `SELECT EXISTS (SELECT FROM {table} AS t WHERE ` + seenSQL + `)`
)

// compiled is a rule that fits its table, with its statements.
type compiled struct {
	Rule
	warnings                              []string
	find, count, list, change, stillThere string
}

// arguments are the first two of the statements that look for suspects.
func (c *compiled) arguments(more ...any) []any {
	if c.Query != "" {
		return append([]any{nil, nil}, more...)
	}
	return append([]any{c.Suspects, c.Age}, more...)
}

func newCompiled(r Rule, look *usertable.Look, warnings []string, schema string) *compiled {
	table, _ := usertable.ParseName(r.Table) // checked by New
	quoted := func(name string) string { return pgx.Identifier{name}.Sanitize() }
	names := []string{
		"{table}", table.Sanitize(), "{key}", quoted(r.Key), "{status}", quoted(r.Status),
		"{keytype}", look.Type(r.Key), "{statustype}", look.Type(r.Status), "{query}", r.Query,
		"{columns}", columnList(r.Columns), "{set}", assignments(r, look),
	}
	if r.Clock == "" {
		names = append(names, "{sinceguard}", "$3::timestamptz IS NOT NULL")
	} else {
		names = append(names, "{clock}", quoted(r.Clock), "{sinceguard}", "t."+quoted(r.Clock)+" = $3::timestamptz")
	}
	suspects := tableSuspectsSQL
	if r.Query != "" {
		suspects = querySuspectsSQL
	}
	// One pass over our own text: a name, or a query, that looks like a placeholder is never looked at again.
	replacer := strings.NewReplacer(names...)
	fill := func(statement string) string {
		return replacer.Replace(pg.SQL(strings.Replace(statement, "{suspects}", suspects, 1)).In(schema))
	}
	return &compiled{
		Rule: r, warnings: warnings, find: fill(findSQL), count: fill(countSQL), list: fill(listSQL), change: fill(changeSQL), stillThere: fill(stillSQL),
	}
}

// columnList is the arguments of jsonb_build_object. The names have only letters, digits and underscores.
func columnList(columns map[string]string) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(columns)) {
		list = append(list, fmt.Sprintf("'%s', t.%s", name, pgx.Identifier{columns[name]}.Sanitize()))
	}
	return strings.Join(list, ", ")
}

func assignments(r Rule, look *usertable.Look) string {
	var set string
	if r.ReasonColumn != "" {
		set += fmt.Sprintf(", %s = $5::text::%s", pgx.Identifier{r.ReasonColumn}.Sanitize(), look.Type(r.ReasonColumn))
	}
	if r.ChangedColumn != "" {
		set += fmt.Sprintf(", %s = clock_timestamp()", pgx.Identifier{r.ChangedColumn}.Sanitize())
	}
	return set
}
