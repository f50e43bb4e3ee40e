package config

import (
	"crypto/tls"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
	"github.com/surefoot-mq/surefoot/internal/urlfile"
)

// TLS is the configuration for amqps and https as the files were when they were checked, for programs of a short life; nil means the system's
// defaults. URL says the same by its parameters, and there the files are read for each connection. Each call returns a copy of its own.
func (a AMQP) TLS() *tls.Config { return a.trust.Clone() }

// secure checks the files for TLS, so that a wrong path is a fault like any other, and adds them to the URLs, as the parameters that the
// clients know.
func (r *reader) secure(src Sources, c *Config) {
	r.checkFiles("database", tlsfiles.Files{CA: c.Database.CAFile, Cert: c.Database.CertFile, Key: c.Database.KeyFile, ReadFile: src.ReadFile})
	files := tlsfiles.Files{CA: c.AMQP.CAFile, Cert: c.AMQP.CertFile, Key: c.AMQP.KeyFile, ServerName: c.AMQP.ServerName, ReadFile: src.ReadFile}
	if r.checkFiles("amqp", files) {
		c.AMQP.trust, _ = files.Client() // they have just been read
	}
	r.checkEncrypted(c)
	database := given("sslrootcert", c.Database.CAFile, "sslcert", c.Database.CertFile, "sslkey", c.Database.KeyFile)
	if len(database) > 0 {
		database.Set("sslmode", "verify-full") // unless the URL says another one
	}
	broker := given("cacertfile", c.AMQP.CAFile, "certfile", c.AMQP.CertFile, "keyfile", c.AMQP.KeyFile, "server_name_indication", c.AMQP.ServerName)
	c.Database.URL, c.Database.Source = sources(c.Database.URL, c.Database.URLFile, database)
	c.Relay.ListenURL, c.Relay.ListenSource = sources(c.Relay.ListenURL, c.Relay.ListenURLFile, database)
	c.AMQP.URL, c.AMQP.Source = sources(c.AMQP.URL, c.AMQP.URLFile, broker)
	c.AMQP.ManagementURL, c.AMQP.ManagementSource = managementOf(c.AMQP.URL, c.AMQP.ManagementURL)
	if c.AMQP.ManagementURLFile != "" {
		c.AMQP.ManagementSource = URL(urlfile.Name(c.AMQP.ManagementURLFile, nil))
	}
}

// checkFiles reports whether there are any, and all can be used.
func (r *reader) checkFiles(section string, files tlsfiles.Files) bool {
	usable := files.CA != "" || files.Cert != "" || files.Key != "" || files.ServerName != ""
	for _, part := range []tlsfiles.Files{{CA: files.CA, ReadFile: files.ReadFile}, {Cert: files.Cert, Key: files.Key, ReadFile: files.ReadFile}} {
		if err := part.Check(); err != nil {
			key, problem, _ := strings.Cut(err.Error(), " ")
			r.wrong(section+"."+key, "%s", problem)
			usable = false
		}
	}
	return usable
}

// checkEncrypted finds files for TLS beside a URL that does without it: whoever set them counts on it.
func (r *reader) checkEncrypted(c *Config) {
	if key := firstSet("ca_file", c.Database.CAFile, "cert_file", c.Database.CertFile); key != "" && c.Database.URL != "" && !enforced(c.Database.URL) {
		r.wrong("database."+key, "is set, but by its sslmode database.url can go without TLS: take sslmode out of it, which is verify-full then, or say verify-full")
	}
	key := firstSet("ca_file", c.AMQP.CAFile, "cert_file", c.AMQP.CertFile, "server_name", c.AMQP.ServerName)
	if key != "" && strings.HasPrefix(string(c.AMQP.URL), "amqp://") && !strings.HasPrefix(string(c.AMQP.ManagementURL), "https://") {
		r.wrong("amqp."+key, "is set, but amqp.url is without TLS: write amqps:// and the port of the broker's TLS listener, 5671 by default")
	}
}

// enforced reports whether a URL without an sslmode, or with its own, never does without TLS. What cannot be parsed is another fault.
func enforced(u URL) bool {
	config, err := pgconn.ParseConfig(urlfile.With(u.Reveal(), url.Values{"sslmode": {"verify-full"}}))
	if err != nil {
		return true
	}
	for _, fallback := range config.Fallbacks {
		if fallback.TLSConfig == nil {
			return false
		}
	}
	return config.TLSConfig != nil
}

// sources are the URL with params, and what stands for it where it is needed again.
func sources(u URL, file string, params url.Values) (whole, source URL) {
	if u == "" {
		return "", ""
	}
	whole = URL(urlfile.With(u.Reveal(), params))
	if file != "" {
		return whole, URL(urlfile.Name(file, params))
	}
	return whole, whole
}

// given are the names and values, by turns, that have a value.
func given(pairs ...string) url.Values {
	values := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			values.Set(pairs[i], pairs[i+1])
		}
	}
	return values
}

// firstSet is the first of the names, by turns with values, that has one.
func firstSet(pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			return pairs[i]
		}
	}
	return ""
}
