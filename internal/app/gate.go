package app

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
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

// watch looks until ctx ends.
func (g *gate) watch(ctx context.Context) {
	ready := false
	for {
		err := g.look(ctx)
		if ctx.Err() != nil {
			return
		}
		g.report(err, ready)
		ready = err == nil
		if !pause.For(ctx, lookEvery) {
			return
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
	select {
	case <-g.opened:
	default:
		close(g.opened)
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
