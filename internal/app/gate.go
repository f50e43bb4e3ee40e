package app

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
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
	last := errStarting
	for {
		err := g.look(ctx)
		if ctx.Err() != nil {
			return
		}
		g.report(err, last)
		last = err
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

// report tells readiness, opens the gate the first time, and logs changes only.
func (g *gate) report(err, last error) {
	g.app.readiness.Set(databasePart, err)
	if err == nil {
		g.open()
	}
	switch {
	case err == nil && last != nil:
		g.app.logger.Info().Msg("database is ready")
	case err != nil && (last == nil || errors.Is(last, errStarting)):
		g.app.logger.Warn().Err(err).Msg("waiting for the database")
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
