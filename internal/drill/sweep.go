package drill

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Everything of a run has its id in its name, behind one of these.
const (
	schemaPrefix = "surefoot_drill_"
	vhostPrefix  = "surefoot-drill-"
	idLength     = 8
)

const (
	lockSQL    = `SELECT pg_advisory_lock(hashtext('surefoot drill ' || $1))`
	tryLockSQL = `SELECT pg_try_advisory_lock(hashtext('surefoot drill ' || $1))`
	unlockSQL  = `SELECT pg_advisory_unlock(hashtext('surefoot drill ' || $1))`
	schemasSQL = `SELECT nspname FROM pg_namespace WHERE starts_with(nspname, $1) ORDER BY nspname`
)

// sweep removes what runs have left that were killed: what nobody holds the lock of.
func (r *Runner) sweep(ctx context.Context) error {
	schemas, err := r.schemas(ctx, schemaPrefix)
	if err != nil {
		return err
	}
	vhosts, err := r.management.Vhosts(ctx)
	if err != nil {
		return err
	}
	left := map[string]bool{}
	for _, name := range append(schemas, vhosts...) {
		if id := runOf(name); id != "" && id != r.id {
			left[id] = true
		}
	}
	for id := range left {
		if err := r.sweepRun(ctx, id, vhosts); err != nil {
			return err
		}
	}
	return nil
}

// runOf is the id in a name, "" when it has none.
func runOf(name string) string {
	for _, prefix := range []string{schemaPrefix, vhostPrefix} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && len(rest) > idLength && (rest[idLength] == '_' || rest[idLength] == '-') {
			return rest[:idLength]
		}
	}
	return ""
}

func (r *Runner) sweepRun(ctx context.Context, id string, vhosts []string) error {
	var gone bool
	if err := r.lock.QueryRow(ctx, tryLockSQL, id).Scan(&gone); err != nil || !gone {
		return err
	}
	defer func() { _, _ = r.lock.Exec(ctx, unlockSQL, id) }() // the end of the connection unlocks, too
	r.o.Say(fmt.Sprintf("%-24s run %s was killed: removing its schemas and vhosts", "clean-up", id))
	if err := r.dropSchemas(ctx, schemaPrefix+id+"_"); err != nil {
		return err
	}
	for _, vhost := range vhosts {
		if runOf(vhost) == id {
			if err := r.deleteVhost(ctx, vhost); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Runner) deleteVhost(ctx context.Context, name string) error {
	_, m, err := r.vhost(name)
	if err != nil {
		return err
	}
	return m.DeleteVhost(ctx)
}

func (r *Runner) schemas(ctx context.Context, prefix string) ([]string, error) {
	rows, err := r.pool.Query(ctx, schemasSQL, prefix)
	if err != nil {
		return nil, fmt.Errorf("list schemas: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list schemas: %w", err)
	}
	return names, nil
}

func (r *Runner) dropSchemas(ctx context.Context, prefix string) error {
	names, err := r.schemas(ctx, prefix)
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, err := r.pool.Exec(ctx, "SET client_min_messages = warning; DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE",
			pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("drop schema %s: %w", name, err)
		}
	}
	return nil
}
