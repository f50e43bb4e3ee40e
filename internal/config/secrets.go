package config

import (
	"net/url"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/urlfile"
)

// secret is a URL that can also be named by a file.
type secret struct {
	key      string
	url      *URL
	file     *string
	fallback string // the variable that other programs use; "" is none
}

func (c *Config) secrets() []secret {
	return []secret{
		{"database.url", &c.Database.URL, &c.Database.URLFile, "DATABASE_URL"},
		{"amqp.url", &c.AMQP.URL, &c.AMQP.URLFile, "AMQP_URL"},
		{"amqp.management_url", &c.AMQP.ManagementURL, &c.AMQP.ManagementURLFile, "MANAGEMENT_URL"},
		{"relay.listen_url", &c.Relay.ListenURL, &c.Relay.ListenURLFile, ""},
	}
}

// layer runs read, which applies one source, and lets the URL or the file that it names replace both of
// the sources below: a URL in a flag wins over a url_file in surefoot.yaml.
func (r *reader) layer(config *Config, read func()) {
	below := *config
	for _, secret := range config.secrets() {
		*secret.url, *secret.file = "", ""
	}
	read()
	lower := below.secrets()
	for i, secret := range config.secrets() {
		switch {
		case *secret.url != "" && *secret.file != "":
			r.wrong(secret.key, "is set, and so is %s_file: keep one of them", secret.key)
		case *secret.url == "" && *secret.file == "":
			*secret.url, *secret.file = *lower[i].url, *lower[i].file
		}
	}
}

// resolveSecrets reads the files, falls back to the common variables, and checks that the URLs are usable.
func (r *reader) resolveSecrets(src Sources, environ map[string]string, config *Config) {
	for _, secret := range config.secrets() {
		if *secret.url == "" && *secret.file == "" {
			r.fallBack(secret, environ)
		}
		if *secret.url == "" && *secret.file != "" {
			r.readSecret(src, secret)
		}
	}
	if src.Database && config.Database.URL == "" && !r.failed("database.url") {
		r.missing("database.url", "SUREFOOT_DATABASE_URL", "postgres://user:password@host:5432/database")
	}
	if src.AMQP && config.AMQP.URL == "" && !r.failed("amqp.url") {
		r.missing("amqp.url", "SUREFOOT_AMQP_URL", "amqp://user:password@host:5672/vhost")
	}
}

func (r *reader) missing(key, variable, example string) {
	r.fault("", key, "is missing: set %s, for example to %s", variable, example)
}

// failed tells whether a key or its file already has a fault.
func (r *reader) failed(key string) bool {
	for _, fault := range r.faults {
		if fault.Key == key || fault.Key == key+"_file" {
			return true
		}
	}
	return false
}

func (r *reader) fallBack(secret secret, environ map[string]string) {
	if secret.fallback == "" {
		return
	}
	if text := environ[secret.fallback]; text != "" {
		*secret.url = URL(text)
		r.set(secret.key, secret.fallback)
	} else if path := environ[secret.fallback+"_FILE"]; path != "" {
		*secret.file = path
		r.set(secret.key+"_file", secret.fallback+"_FILE")
	}
}

func (r *reader) readSecret(src Sources, secret secret) {
	key := secret.key + "_file"
	data, err := src.ReadFile(*secret.file)
	if err != nil {
		r.wrong(key, "cannot be read: %s", err)
		return
	}
	text, err := urlfile.Text(data)
	if err != nil {
		r.wrong(key, "%s", err)
		return
	}
	*secret.url = URL(text)
	r.set(secret.key, r.sourceOf(key))
}

// managementOf completes the management plugin's URL from the broker's: without one, the same host (the first of several) at the
// plugin's usual port, encrypted when AMQP is; without credentials in it, the same credentials. It is "" when
// there is neither. The second is without credentials that are not its own.
func managementOf(broker, given URL) (whole, source URL) {
	uri, err := amqp.ParseURI(broker.Reveal())
	if broker == "" || err != nil {
		return given, given
	}
	host := uri.Host
	if first, _, several := strings.Cut(host, ","); several {
		host, _, _ = strings.Cut(first, ":") // without its port, which all but the last keep
	}
	management := rabbit.UsualManagementURL(uri.Scheme, host)
	if given != "" {
		if management, err = url.Parse(given.Reveal()); err != nil {
			return given, given
		}
	}
	source = URL(management.String())
	if management.User == nil {
		management.User = url.UserPassword(uri.Username, uri.Password)
	}
	return URL(management.String()), source
}
