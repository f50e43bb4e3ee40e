package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"regexp"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// poolSize is more than any peer uses at once; connections open when they are needed.
const poolSize = 64

// schemaName is what all three peers take: River puts the name unquoted into its statements and channels.
var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,44}$`)

// environment is what every command runs in.
type environment struct {
	db       *pgxpool.Pool
	schema   string // exists
	amqpURL  string
	exchange string
	logger   *slog.Logger
}

func connect(ctx context.Context, getenv func(string) string, logger *slog.Logger) (*environment, error) {
	env := &environment{
		schema: getenv("SUREFOOT_BENCH_SCHEMA"), exchange: getenv("SUREFOOT_BENCH_EXCHANGE"), amqpURL: getenv("SUREFOOT_AMQP_URL"), logger: logger,
	}
	if !schemaName.MatchString(env.schema) {
		return nil, errors.New("SUREFOOT_BENCH_SCHEMA must be set, to at most 45 lower-case letters, digits and underscores")
	}
	url := getenv("SUREFOOT_DATABASE_URL")
	if url == "" {
		return nil, errors.New("SUREFOOT_DATABASE_URL is not set")
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("SUREFOOT_DATABASE_URL: %w", err) // pgx masks the password
	}
	config.MaxConns = poolSize
	if env.db, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	if err := env.exec(ctx, "SET client_min_messages = warning; CREATE SCHEMA IF NOT EXISTS "+env.schema); err != nil {
		env.close()
		return nil, err
	}
	return env, nil
}

func (e *environment) close() { e.db.Close() }

// table is a table of the schema, quoted.
func (e *environment) table(name string) string { return pgx.Identifier{e.schema, name}.Sanitize() }

// exec runs statements without arguments, several in one string.
func (e *environment) exec(ctx context.Context, statements string) error {
	_, err := e.db.Exec(ctx, statements, pgx.QueryExecModeSimpleProtocol)
	return err
}

// vacuum leaves a freshly filled table as autovacuum would a minute later, so that no peer starts with a planner that knows nothing.
func (e *environment) vacuum(ctx context.Context, table string) error {
	return e.exec(ctx, "VACUUM (ANALYZE) "+table)
}

// payload is text that neither PostgreSQL nor JSON makes longer or shorter, the same in every run.
func payload(size int) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	random := rand.New(rand.NewPCG(1, 2))
	text := make([]byte, size)
	for i := range text {
		text[i] = letters[random.IntN(len(letters))]
	}
	return string(text)
}
