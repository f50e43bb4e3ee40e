package app

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/resilience"
)

// The database is looked at this often, and one look may take this long.
const (
	lookEvery = 2 * time.Second
	lookLimit = 2 * time.Second
)

// databasePart is the database's name in the readiness probe.
const databasePart = "database"

// gate watches the database on a pool of its own, tells readiness, and holds the roles back until it has
// once been there with the schema that this program knows.
type gate struct {
	app    *application
	pool   *pgxpool.Pool
	opened chan struct{}
	away   telemetry.Reminder
}

func (a *application) newGate(ctx context.Context) (*gate, error) {
	pool, err := a.openPool(ctx, "http")
	if err != nil {
		return nil, err
	}
	return &gate{app: a, pool: pool, opened: make(chan struct{})}, nil
}

// watch looks until ctx ends. It gives up when the role has no right to look before the gate has opened: that is how it
// was set up, and waiting does not mend it.
func (g *gate) watch(ctx context.Context) error {
	ready := false
	for {
		err := g.look(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // a look that was cut off has found nothing
		}
		g.report(err, ready)
		if !g.isOpen() && resilience.SQLStateOf(err) == pg.InsufficientPrivilege {
			return fmt.Errorf("the database role lacks rights in schema %s: %w", g.app.config.Database.Schema, err)
		}
		ready = err == nil
		if !pause.For(ctx, lookEvery) {
			return nil
		}
	}
}

func (g *gate) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	return pg.CheckVersion(ctx, g.pool, g.app.config.Database.Schema)
}

// report tells readiness, opens the gate the first time, and logs when the database comes, when it goes, and why it is
// away whenever that changes.
func (g *gate) report(err error, ready bool) {
	g.app.readiness.Set(databasePart, err)
	if err != nil {
		if g.away.Due(err.Error(), time.Now()) {
			g.app.logger.Warn().Err(err).Msg("waiting for the database")
		}
		return
	}
	g.away.Over()
	g.open()
	if !ready {
		g.app.logger.Info().Msg("database is ready")
	}
}

func (g *gate) open() {
	if !g.isOpen() {
		close(g.opened)
	}
}

func (g *gate) isOpen() bool {
	select {
	case <-g.opened:
		return true
	default:
		return false
	}
}

// passed blocks until the gate has opened; false when ctx has ended first.
func (g *gate) passed(ctx context.Context) bool {
	select {
	case <-g.opened:
		return true
	case <-ctx.Done():
		return false
	}
}
