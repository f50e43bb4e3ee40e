package consumer

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

// rightsSQL returns, as statements, the rights that a consumer needs for its inbox and this role does not have.
const rightsSQL pg.SQL = `
WITH needed(name, privileges) AS (VALUES
    ('inbox', '{SELECT,INSERT,DELETE}'::text[]),
    ('inbox_consumers', '{SELECT,INSERT,UPDATE}'),
    ('inbox_suspects', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('pauses', '{SELECT}'),
    ('schema_version', '{SELECT}')
)
SELECT format('GRANT %s ON TABLE %I.%I TO %I;', string_agg(privilege, ', '), '@schema@', name, current_user)
FROM needed CROSS JOIN LATERAL unnest(privileges) AS privilege
WHERE NOT has_table_privilege(format('%I.%I', '@schema@', name), privilege) GROUP BY name ORDER BY name`

// LackingRights returns the statements that would give the pool's role what a consumer needs and it does not have in the schema; none when it
// has all. An error says that the database could not be asked. It changes nothing.
func LackingRights(ctx context.Context, pool *pgxpool.Pool, schema string) ([]string, error) {
	rows, _ := pool.Query(ctx, rightsSQL.In(schema)) // its error is that of the rows
	grants, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("check the database role's rights: %w", err)
	}
	return grants, nil
}
