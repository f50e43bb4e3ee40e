package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/spf13/pflag"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// session is one run of the command line: what commands share. It is used by one goroutine.
type session struct {
	env     Env
	flags   *pflag.FlagSet
	started bool
	misuse  error // found where cobra takes no error

	configPath string
	as         string
	output     format
	dryRun     bool
	yes        bool
	traceLink  string // once the configuration is read

	closers []func() error
}

func newSession(env Env) *session { return &session{env: env, output: formatTable} }

// need says which services a command cannot do without.
type need struct{ database, amqp bool }

// config reads and checks the configuration; a URL that the command needs and that is missing is one of the
// faults.
func (s *session) config(n need) (*config.Config, error) {
	c, err := config.Load(config.Sources{
		Path: s.configPath, Environ: s.env.Environ, Flags: s.givenFlags(), ReadFile: s.env.ReadFile,
		Database: n.database, AMQP: n.amqp,
	})
	if err == nil {
		s.traceLink = c.Tracing.Link
	}
	return c, err
}

// logger writes to stderr as the configuration says.
func (s *session) logger(c config.Log) (zerolog.Logger, error) {
	return telemetry.NewLogger(telemetry.LoggerOptions{
		Writer: s.env.Stderr, Level: c.Level, NoColor: !s.env.color(),
		Pretty: c.Format == "pretty" || c.Format == "auto" && s.env.StderrTTY,
	})
}

// crashLogger is for what happens when nothing else is known.
func (s *session) crashLogger() zerolog.Logger {
	logger, err := s.logger(config.Default().Log)
	if err != nil {
		return zerolog.New(s.env.Stderr)
	}
	return logger
}

// database is an open database and the configuration that it came from.
type database struct {
	pool   *pgxpool.Pool
	schema string
	config *config.Config
}

// pingLimit bounds the first look at the database.
const pingLimit = 5 * time.Second

// database opens the database for a command, makes sure that it answers and that its schema is the one
// that this program knows, and closes it when the command ends.
func (s *session) database(ctx context.Context) (*database, error) {
	c, err := s.config(need{database: true})
	if err != nil {
		return nil, err
	}
	pool, err := pg.Open(ctx, pg.Options{
		URL: c.Database.URL.Reveal(), Name: "surefoot cli " + s.env.Host, MaxConns: int32(c.Database.MaxConns),
		ConnectTimeout: c.Database.ConnectTimeout, StatementTimeout: c.Database.StatementTimeout,
	})
	if err != nil {
		return nil, err
	}
	s.onClose(func() error { pool.Close(); return nil })
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	if err := pg.CheckVersion(ctx, pool, c.Database.Schema); err != nil {
		return nil, fmt.Errorf("database %s: %w", c.Database.URL, err)
	}
	return &database{pool: pool, schema: c.Database.Schema, config: c}, nil
}

// management is the broker's management API. It does not connect.
func (s *session) management(c *config.Config) (*rabbit.Management, error) {
	return rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: c.AMQP.URL.Reveal(), URL: c.AMQP.ManagementURL.Reveal(), TLS: c.AMQP.TLS()})
}

// onClose has something closed when the command ends, last in, first out.
func (s *session) onClose(closer func() error) { s.closers = append(s.closers, closer) }

func (s *session) close() error {
	var failed []error
	for _, closer := range slices.Backward(s.closers) {
		failed = append(failed, closer())
	}
	s.closers = nil
	return errors.Join(failed...)
}

// maxOperator bounds audit's "who", in bytes.
const maxOperator = 200

// operator is audit's "who": --as, else SUREFOOT_OPERATOR, else user@host.
func (s *session) operator() (string, error) {
	who := cmp.Or(s.as, s.env.getenv("SUREFOOT_OPERATOR"), s.env.User+"@"+s.env.Host)
	if strings.TrimSpace(who) == "" || !plain(who, maxOperator) {
		return "", usageErrorf("give a name with --as or SUREFOOT_OPERATOR",
			"the operator's name must be 1 to %d bytes of plain text", maxOperator)
	}
	return who, nil
}

// origin is from where somebody acts, for the audit.
func (s *session) origin() string { return "surefoot " + s.build().Version + " on " + s.env.Host }

// note tells the person at the terminal something that is not data.
func (s *session) note(format string, args ...any) {
	fmt.Fprintln(s.env.Stderr, EscapeBlock(fmt.Sprintf(format, args...), maxErrorText))
}

// noteLimit tells of a list that is as long as it may be.
func (s *session) noteLimit(n, limit int) {
	if n == limit {
		s.note("there may be more: this is the limit of %d", limit)
	}
}
