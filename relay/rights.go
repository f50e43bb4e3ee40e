package relay

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pg"
)

// rightsSQL returns, as statements, the rights that a relay needs and this role does not have. Without them it would
// publish, say, and never settle.
const rightsSQL pg.SQL = `
WITH needed(name, privileges) AS (VALUES
    ('outbox', '{SELECT,DELETE}'::text[]),
    ('outbox_parked', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('outbox_leases', '{SELECT,UPDATE}'),
    ('outbox_members', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('outbox_requests', '{SELECT,UPDATE,DELETE}'),
    ('outbox_stopped', '{SELECT,INSERT,UPDATE,DELETE}'),
    ('outbox_once', '{SELECT,DELETE}'),
    ('audit', '{SELECT,INSERT,DELETE}'),
    ('schema_version', '{SELECT}')
), lacking AS (
    SELECT privilege, format('TABLE %I.%I', '@schema@', name) AS object
    FROM needed CROSS JOIN LATERAL unnest(privileges) AS privilege
    WHERE NOT has_table_privilege(format('%I.%I', '@schema@', name), privilege)
    UNION ALL
    SELECT 'SELECT', 'SEQUENCE @schema@.outbox_id_seq' WHERE NOT has_sequence_privilege('@schema@.outbox_id_seq', 'SELECT')
    UNION ALL
    SELECT privilege, 'SEQUENCE @schema@.outbox_doorbell' FROM (VALUES ('SELECT'), ('UPDATE')) AS b(privilege)
    WHERE NOT has_sequence_privilege('@schema@.outbox_doorbell', privilege)
    UNION ALL
    SELECT 'EXECUTE', 'FUNCTION @schema@.outbox_shards()' WHERE NOT has_function_privilege('@schema@.outbox_shards()', 'EXECUTE')
)
SELECT format('GRANT %s ON %s TO %I;', string_agg(privilege, ', ' ORDER BY array_position('{SELECT,INSERT,UPDATE,DELETE,EXECUTE}', privilege)), object, current_user) FROM lacking GROUP BY object ORDER BY object`

// RightsError says that the relay's database role lacks rights, which waiting does not mend.
type RightsError struct {
	// Grants are the statements that give them.
	Grants []string
}

// Error implements error.
func (e *RightsError) Error() string {
	return "relay: the database role lacks rights; as the owner of the schema, run: " + strings.Join(e.Grants, " ")
}

// SQLState is PostgreSQL's insufficient_privilege.
func (e *RightsError) SQLState() string { return pg.InsufficientPrivilege }

// CheckRights returns a [RightsError] that names what a relay needs and the pool's role does not have in the schema, nil when it has all;
// any other error says that the database could not be asked. It changes nothing.
func CheckRights(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	rows, _ := pool.Query(ctx, rightsSQL.In(schema)) // its error is that of the rows
	grants, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("check the database role's rights: %w", err)
	}
	if len(grants) > 0 {
		return &RightsError{grants}
	}
	return nil
}
