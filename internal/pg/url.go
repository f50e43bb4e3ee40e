package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
	"github.com/surefoot-mq/surefoot/internal/urlfile"
)

// Connect opens one connection that belongs to no pool. The caller closes it.
func Connect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := parse(url)
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, config.ConnConfig)
}

// errNoURL: the driver would look at PG* variables and a local socket, and connect to who knows where.
var errNoURL = errors.New("database URL is empty; expected postgres://user:password@host:port/database?options")

// parse reads the URL, and the files that it names, as they are now.
func parse(raw string) (*pgxpool.Config, error) {
	if raw == "" {
		return nil, errNoURL
	}
	text, err := urlfile.Resolve(raw)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	config, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, parseError(err)
	}
	explain(config.ConnConfig, filesOf(text))
	return config, nil
}

// CheckURL reports whether a URL, or the file that it names, can be used, with the files for TLS in it. Its errors show nothing of a password.
func CheckURL(url string) error {
	_, err := parse(url)
	return err
}

// FilesError says of the files for TLS that a URL names (sslrootcert, sslcert, sslkey) which cannot be used, and why.
type FilesError struct{ Problem string }

func (e *FilesError) Error() string { return "files for TLS that the database URL names: " + e.Problem }

// parseError keeps the reason and drops the text of the URL, which may hold a password that the driver
// failed to recognise as one.
func parseError(err error) error {
	if parse, ok := errors.AsType[*pgconn.ParseConfigError](err); ok {
		inner := errors.Unwrap(parse)
		switch {
		case inner == nil || inner.Error() == "":
		case aboutFiles(inner):
			return &FilesError{Problem: inner.Error()}
		default:
			return errors.New("database URL cannot be parsed; expected postgres://user:password@host:port/database?options")
		}
	}
	return errors.New("database URL is not valid; expected postgres://user:password@host:port/database?options")
}

// aboutFiles knows the driver's complaints about sslrootcert, sslcert and sslkey, which show their names only.
func aboutFiles(err error) bool {
	for _, begins := range []string{"unable to read CA file", "unable to add CA", "both \"sslcert\"", "unable to read sslkey", "unable to read cert", "unable to load cert", "failed to decode sslkey"} {
		if strings.HasPrefix(err.Error(), begins) {
			return true
		}
	}
	return false
}

// keyword finds the TLS parameters among keywords and values.
var keyword = regexp.MustCompile(`\b(sslrootcert|sslcert|sslkey)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|(\S+))`)

// filesOf are the files that a URL names, for errors.
func filesOf(text string) tlsfiles.Files {
	named := url.Values{}
	if u, err := url.Parse(text); err == nil && u.Scheme != "" {
		named = u.Query()
	} else {
		for _, found := range keyword.FindAllStringSubmatch(text, -1) {
			named.Set(found[1], found[2]+found[3])
		}
	}
	return tlsfiles.Files{CA: named.Get("sslrootcert"), Cert: named.Get("sslcert"), Key: named.Get("sslkey")}
}

// explain has errors of the TLS handshake, which happens with the first bytes that are written, say what to do. The connection itself stays what it
// is, for the driver binds passwords to its certificate.
func explain(config *pgx.ConnConfig, files tlsfiles.Files) {
	if config.TLSConfig == nil {
		return
	}
	build := config.BuildFrontend
	config.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
		return build(explained{files: files, r: r}, explained{files: files, w: w})
	}
}

type explained struct {
	files tlsfiles.Files
	r     io.Reader
	w     io.Writer
}

// Read implements [io.Reader].
func (e explained) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	return n, e.files.Explain(err, "the database")
}

// Write implements [io.Writer].
func (e explained) Write(p []byte) (int, error) {
	n, err := e.w.Write(p)
	return n, e.files.Explain(err, "the database")
}
