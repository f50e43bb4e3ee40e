// Package pg opens PostgreSQL pools with the limits that every role needs, names the schema, and carries
// the embedded migrations.
package pg

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/resilience"
)

// DefaultSchema holds Surefoot's tables inside the user's database.
const DefaultSchema = "surefoot"

// schemaName keeps a schema usable unquoted, so that it can be pasted into SQL and never needs quoting.
// 40 bytes leave room for the names of channels that are derived from it.
var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)

// CheckSchema reports whether a name can be Surefoot's schema. Empty stands for [DefaultSchema].
func CheckSchema(name string) error {
	if name != "" && !schemaName.MatchString(name) {
		return fmt.Errorf("schema %q: use 1 to 40 lower-case letters, digits and underscores, not starting with a digit", name)
	}
	return nil
}

// Schema returns the schema to use: name, or [DefaultSchema] when it is empty.
func Schema(name string) string {
	if name == "" {
		return DefaultSchema
	}
	return name
}

// Options of a pool.
type Options struct {
	// URL of the database (postgres://...), or file:///path of a file that holds it. Required.
	URL string
	// Name appears as application_name, for example "surefoot relay". Default: "surefoot".
	Name string
	// MaxConns bounds the pool. Default: 4.
	MaxConns int32
	// ConnectTimeout bounds one attempt to connect. Default: 5 s.
	ConnectTimeout time.Duration
	// StatementTimeout bounds every statement. Default: 30 s; negative: none. The server enforces it, by 57014. Behind
	// a pooler, where a setting would strike others, the pool does: the statement's context ends, the server is told to
	// cancel and the connection is closed; a transaction that begins with SET LOCAL statement_timeout keeps its own.
	StatementTimeout time.Duration
}

// Open returns a pool. It does not look for the database, which may be away: the first use finds out. Errors never
// contain the password. The caller closes the pool.
//
// For each connection the URL is looked at anew: where it names files, of passwords and certificates or the one that holds it, what is in them
// counts from the next connection. Each finds out by itself whether a pooler is at its other end, and does without prepared statements
// there unless the URL's default_query_exec_mode says otherwise.
func Open(ctx context.Context, o Options) (*pgxpool.Pool, error) {
	config, err := o.withDefaults().poolConfig()
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open database pool: %w", err)
	}
	return pool, nil
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = "surefoot"
	}
	if o.MaxConns <= 0 {
		o.MaxConns = 4
	}
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = 5 * time.Second
	}
	if o.StatementTimeout == 0 {
		o.StatementTimeout = 30 * time.Second
	}
	return o
}

func (o Options) poolConfig() (*pgxpool.Config, error) {
	config, err := o.fresh()
	if err != nil {
		return nil, err
	}
	config.MaxConns = o.MaxConns
	config.MinConns, config.MinIdleConns = 0, 0
	config.BeforeConnect = func(_ context.Context, own *pgx.ConnConfig) error {
		now, err := o.fresh()
		if err != nil {
			return resilience.Unavailable(&rereadError{err})
		}
		*own = *now.ConnConfig
		return nil
	}
	return config, nil
}

// fresh is made from what the URL and its files say at this moment.
func (o Options) fresh() (*pgxpool.Config, error) {
	config, err := parse(o.URL)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.ConnectTimeout = o.ConnectTimeout
	if _, set := config.ConnConfig.RuntimeParams["application_name"]; !set {
		config.ConnConfig.RuntimeParams["application_name"] = o.Name
	}
	config.ConnConfig.Tracer = &sessions{
		connectTimeout: o.ConnectTimeout, statementTimeout: o.StatementTimeout, mode: choosesMode(config.ConnString()),
	}
	return config, nil
}

// TLSAdvice is what to do about an error that says that client and server do not agree whether there is TLS, or that a certificate is missing.
// Empty for every other error.
func TLSAdvice(err error) string {
	refusal, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
	case ok && refusal.Code == "28000" && strings.Contains(refusal.Message, "client certificate"):
		return "set database.cert_file and key_file to a certificate that the server trusts (ssl_ca_file), with the role's name as its common name"
	case ok && refusal.Code == "28000" && strings.Contains(refusal.Message, "no encryption"):
		return "the server may take this user over TLS only: set database.ca_file, with which sslmode is verify-full; else let the user in (pg_hba.conf)"
	case strings.Contains(err.Error(), "server refused TLS connection"): // the driver has no type for it
		return "the server speaks no TLS: set ssl = on there, with ssl_cert_file and ssl_key_file; only where nobody is on the way write sslmode=disable"
	}
	return ""
}

// rereadError is a URL or a file that was usable when the pool was opened, and may be so again in a moment: it is being replaced.
type rereadError struct{ cause error }

func (e *rereadError) Error() string { return e.cause.Error() }
func (e *rereadError) Unwrap() error { return e.cause }

// choosesMode reports whether a URL, which has been parsed before, says how statements are to be executed.
func choosesMode(url string) bool {
	config, err := pgconn.ParseConfig(url)
	if err != nil {
		return false
	}
	_, set := config.RuntimeParams["default_query_exec_mode"]
	return set
}

// IsUnavailable reports whether an error says that the database is away or going away, so that waiting
// and trying again is the answer.
func IsUnavailable(err error) bool {
	if server, ok := errors.AsType[*pgconn.PgError](err); ok {
		class := server.Code[:min(2, len(server.Code))]
		return class == "08" || server.Code == "57P01" || server.Code == "57P02" || server.Code == "57P03" || server.Code == "53300"
	}
	var connect *pgconn.ConnectError
	var reread *rereadError
	return errors.As(err, &connect) || errors.As(err, &reread) || pgconn.SafeToRetry(err)
}
