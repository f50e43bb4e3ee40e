package config

import (
	"crypto/tls"
	"time"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/topology"
)

// Config is the whole configuration. Load returns it complete and checked.
type Config struct {
	Database  Database      `yaml:"database"`
	AMQP      AMQP          `yaml:"amqp"`
	HTTP      HTTP          `yaml:"http"`
	Log       Log           `yaml:"log"`
	Tracing   Tracing       `yaml:"tracing"`
	Relay     Relay         `yaml:"relay"`
	Topology  topology.Spec `yaml:"topology"`
	Inbox     Inbox         `yaml:"inbox"`
	Watchdog  Watchdog      `yaml:"watchdog"`
	Reconcile Reconcile     `yaml:"reconcile"`
	Console   Console       `yaml:"console"`
	Shutdown  Shutdown      `yaml:"shutdown"`

	// Dependencies are the limits of calls to other services, by name, for the programs that make them: see policy.FromConfig.
	Dependencies map[string]resilience.Settings `yaml:"dependencies"`
}

// Database says where PostgreSQL is and how it is used.
type Database struct {
	// URL is a postgres:// URL or a keyword/value string. Default: DATABASE_URL.
	URL URL `yaml:"url"`
	// URLFile is a file that holds the URL; it is read again for each connection. Default: none.
	URLFile string `yaml:"url_file"`
	// CAFile is a PEM file of the authorities trusted for TLS, read again for each connection, as the two others are. Default: the URL's sslrootcert,
	// else the system's.
	CAFile string `yaml:"ca_file"`
	// CertFile is a PEM file of the certificate shown to the server. Default: the URL's sslcert, else none.
	CertFile string `yaml:"cert_file"`
	// KeyFile is its key. Default: the URL's sslkey.
	KeyFile string `yaml:"key_file"`
	// Schema holds Surefoot's tables. Default surefoot.
	Schema string `yaml:"schema" env:"SUREFOOT_SCHEMA"`
	// MaxConns is the most connections of each role's pool. Default 10.
	MaxConns int `yaml:"max_conns"`
	// ConnectTimeout limits one attempt to connect. Default 5s.
	ConnectTimeout time.Duration `yaml:"connect_timeout"`
	// StatementTimeout limits every statement, on the server. Default 30s.
	StatementTimeout time.Duration `yaml:"statement_timeout"`

	// Source is what a long-running program connects with: URL, or the name of the file that holds it. See package urlfile.
	Source URL `yaml:"-"`
}

// AMQP says where RabbitMQ is.
type AMQP struct {
	// URL is an amqp:// or amqps:// URL; hosts of a cluster are separated by commas. Default: AMQP_URL.
	URL URL `yaml:"url"`
	// URLFile is a file that holds the URL; it is read again for each connection. Default: none.
	URLFile string `yaml:"url_file"`
	// ManagementURL is the management plugin's http:// or https:// URL. Default: MANAGEMENT_URL, else the
	// (first) host of URL at port 15672 (15671 and https for amqps). Without a user in it, it gets that of URL.
	ManagementURL URL `yaml:"management_url" env:"SUREFOOT_MANAGEMENT_URL"`
	// ManagementURLFile is a file that holds ManagementURL; it is read again for each request. Default: none.
	ManagementURLFile string `yaml:"management_url_file" env:"SUREFOOT_MANAGEMENT_URL_FILE"`
	// CAFile is a PEM file of the authorities trusted for amqps and https, read again for each connection, as the two others are. Default: the URL's
	// cacertfile, else the system's.
	CAFile string `yaml:"ca_file"`
	// CertFile is a PEM file of the certificate shown to the broker. Default: the URL's certfile, else none.
	CertFile string `yaml:"cert_file"`
	// KeyFile is its key. Default: the URL's keyfile.
	KeyFile string `yaml:"key_file"`
	// ServerName is the name expected in the broker's certificate. Default: the URL's server_name_indication, else its host.
	ServerName string `yaml:"server_name"`

	// Source and ManagementSource are what a long-running program connects with: the URLs, or the names of the files that hold them. See package
	// urlfile. A ManagementURL without a user has none here: it is that of Source.
	Source, ManagementSource URL `yaml:"-"`

	// trust is what the files held as they were checked.
	trust *tls.Config
}

// HTTP says where the probes and metrics are served.
type HTTP struct {
	// Listen is host:port of /livez, /readyz and /metrics. Default :9464.
	Listen string `yaml:"listen"`
	// CertFile and KeyFile are the certificate of its listener, in PEM form, read again when they change. Default: none, no TLS.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
}

// Log says what log lines look like.
type Log struct {
	// Level is trace, debug, info, warn or error. Default info.
	Level string `yaml:"level"`
	// Format is json, pretty or auto, which is pretty on a terminal. Default auto.
	Format string `yaml:"format"`
}

// Tracing says where spans go.
type Tracing struct {
	// Endpoint is the OTLP/HTTP collector's URL. Default: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
	// OTEL_EXPORTER_OTLP_ENDPOINT, else none: no spans are made.
	Endpoint string `yaml:"endpoint"`
	// SampleRatio is the share of traces begun here that are kept, 0 to 1. Default 1.
	SampleRatio float64 `yaml:"sample_ratio"`
	// Link is the URL of a trace in the tracing backend; {id} stands for the trace's id. Default: none, ids are shown.
	Link string `yaml:"link"`
}

// Relay says how committed outbox rows are published.
type Relay struct {
	// Shards is how many lanes the keys are spread over. It is stored in the database: another number
	// refuses to start. Default 8.
	Shards int `yaml:"shards"`
	// Exchange is published to by rows that name none. Default: topology.exchange; the relay needs one of the two.
	Exchange string `yaml:"exchange"`
	// Connections is the most connections to publish on. Default 4.
	Connections int `yaml:"connections"`
	// ListenURL reaches the database directly, not through a pooler, to be woken by NOTIFY. Default: none,
	// rows wait up to poll_max.
	ListenURL URL `yaml:"listen_url"`
	// ListenURLFile is a file that holds ListenURL; it is read again for each connection. Default: none.
	ListenURLFile string `yaml:"listen_url_file"`
	// ListenSource is what the relay connects with: ListenURL, or the name of the file that holds it.
	ListenSource URL `yaml:"-"`
	// Lease is how long a silent owner keeps a shard; renewed at a third. Default 10s.
	Lease time.Duration `yaml:"lease"`
	// Window is the most unconfirmed messages per shard. Default 1000.
	Window int `yaml:"window"`
	// WindowBytes is the most unconfirmed bytes per shard. Default 16MiB.
	WindowBytes Size `yaml:"window_bytes"`
	// PollMin is the wait between reads until nothing has come for PollMax. Default 2ms.
	PollMin time.Duration `yaml:"poll_min"`
	// PollMax is the wait between reads when idle. Default 100ms.
	PollMax time.Duration `yaml:"poll_max"`
	// ConfirmTimeout is how long the broker may take to confirm before a route is stopped. Default 30s.
	ConfirmTimeout time.Duration `yaml:"confirm_timeout"`
	// Attempts is how often a bad row is tried before it is dead. Default 3.
	Attempts int `yaml:"attempts"`
	// Backoff is the wait before a bad row's second try, doubled for each further one. Default 200ms.
	Backoff time.Duration `yaml:"backoff"`
	// OnPoison says what happens to the later rows of a bad row's key: strict holds them back, skip lets
	// them pass. Default strict.
	OnPoison string `yaml:"on_poison"`
}

// Inbox says how long handled messages are remembered.
type Inbox struct {
	// Retention is how long a message's id keeps a second delivery from having effects. Default 168h.
	Retention time.Duration `yaml:"retention"`
}

// Watchdog says which rows of the user's tables may not stay as they are.
type Watchdog struct {
	// Interval is the time between cycles. Default 60s.
	Interval time.Duration `yaml:"interval"`
	// Batch is the most rows of one transaction. Default 100.
	Batch int `yaml:"batch"`
	// Rules are what is watched. Default: none.
	Rules []Rule `yaml:"rules"`
}

// Rule moves rows that have been in one status for too long into another, and says so in an event.
type Rule struct {
	// Name tells the rule from others. Required.
	Name string `yaml:"name"`
	// Table is the table with its schema, as schema.table. Required.
	Table string `yaml:"table"`
	// Key is the column that identifies a row; it becomes the event's key. Required.
	Key string `yaml:"key"`
	// Status is the column that holds the state. Required.
	Status string `yaml:"status"`
	// Stuck is the list of statuses that must not last. Required.
	Stuck []string `yaml:"stuck"`
	// Clock is the timestamptz column that says since when. Required.
	Clock string `yaml:"clock"`
	// Limit is how long the status may last. Required.
	Limit time.Duration `yaml:"limit"`
	// NewStatus is what the row becomes. Required.
	NewStatus string `yaml:"new_status"`
	// Reason is written into the event, for example PAYMENT_TIMEOUT. Required.
	Reason string `yaml:"reason"`
	// ReasonColumn also gets the reason. Default: none.
	ReasonColumn string `yaml:"reason_column"`
	// ChangedColumn, a timestamptz, gets the time of the change. Default: none.
	ChangedColumn string `yaml:"changed_column"`
	// Exchange is where the event is published. Default: the relay's exchange.
	Exchange string `yaml:"exchange"`
	// EventType is the event's type and routing key. Required.
	EventType string `yaml:"event_type"`
	// Payload adds columns to the event: JSON name to column. Default: none.
	Payload map[string]string `yaml:"payload"`
}

// Console says where the operators' page is served.
type Console struct {
	// Listen is host:port; with it `surefoot run` serves the page, too. Beyond loopback addresses it needs Login, and CertFile or
	// TrustedProxies. Default: none.
	Listen string `yaml:"listen"`
	// PublicURL is how browsers name the console; needed beyond loopback. Default: as its address.
	PublicURL string `yaml:"public_url"`
	// CertFile and KeyFile are the certificate of its listener, in PEM form, read again when they change. Default: none, no TLS.
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	// ClientCAFile has the authorities of which browsers must show a certificate, too. Default: none, they need not.
	ClientCAFile string `yaml:"client_ca_file"`
	// TrustedProxies are addresses and networks of proxies in front, whose headers are believed. Default: none.
	TrustedProxies []string `yaml:"trusted_proxies"`
	// Login says how people log in. Default: not at all.
	Login Login `yaml:"login"`
	// Mask are patterns of the names of JSON fields and headers whose values are shown to nobody who does not reveal them. Default: see there.
	Mask []string `yaml:"mask"`
}

// Login says how people log in to the console: by UsersFile, Header or OIDC, one of them.
type Login struct {
	// UsersFile has NAME:ROLE:HASH lines of surefoot console hash-password; it is read again when it changes. Default: none.
	UsersFile string `yaml:"users_file"`
	// Header is the login by a proxy of TrustedProxies.
	Header LoginHeader `yaml:"header"`
	// OIDC is the login by an OpenID Connect provider.
	OIDC LoginOIDC `yaml:"oidc"`
	// Roles are the groups, or values of the claim, that have a role. Whoever has none is refused.
	Roles LoginRoles `yaml:"roles"`
	// Idle ends a session without activity. Default 30m.
	Idle time.Duration `yaml:"idle"`
	// Absolute ends every session. Default 12h.
	Absolute time.Duration `yaml:"absolute"`
}

// LoginHeader names the headers of a proxy that has asked who it is.
type LoginHeader struct {
	// User has the name. Default: none.
	User string `yaml:"user"`
	// Groups has the groups, separated by commas. Default: none.
	Groups string `yaml:"groups"`
}

// LoginOIDC is a client at an OpenID Connect provider.
type LoginOIDC struct {
	// Issuer is the provider's URL. Default: none.
	Issuer string `yaml:"issuer"`
	// ClientID of the console there.
	ClientID string `yaml:"client_id"`
	// ClientSecretFile holds its secret, read for each login. Default: none, a public client.
	ClientSecretFile string `yaml:"client_secret_file"`
	// CAFile has the authorities of the provider's certificate. Default: the system's.
	CAFile string `yaml:"ca_file"`
	// Scopes that are asked for. Default: openid, profile.
	Scopes []string `yaml:"scopes"`
	// NameClaim has the name for the audit. Default preferred_username.
	NameClaim string `yaml:"name_claim"`
	// RoleClaim has what Roles map; dots lead into objects. Default groups.
	RoleClaim string `yaml:"role_claim"`
}

// LoginRoles are groups, or values of a claim, by the role that they have.
type LoginRoles struct {
	View    []string `yaml:"view"`
	Operate []string `yaml:"operate"`
	Admin   []string `yaml:"admin"`
}

// Shutdown says how a stop goes.
type Shutdown struct {
	// Timeout is the longest time from the signal to the exit. Default 25s, 5 s under the usual grace of
	// container platforms.
	Timeout time.Duration `yaml:"timeout"`
}

// Default is the configuration of an empty file.
func Default() Config {
	return Config{
		Database: Database{Schema: "surefoot", MaxConns: 10, ConnectTimeout: 5 * time.Second, StatementTimeout: 30 * time.Second},
		HTTP:     HTTP{Listen: ":9464"},
		Log:      Log{Level: "info", Format: "auto"},
		Tracing:  Tracing{SampleRatio: 1},
		Relay: Relay{
			Shards: 8, Connections: 4, Lease: 10 * time.Second, Window: 1000, WindowBytes: 16 << 20,
			PollMin: 2 * time.Millisecond, PollMax: 100 * time.Millisecond, ConfirmTimeout: 30 * time.Second,
			Attempts: 3, Backoff: 200 * time.Millisecond, OnPoison: "strict",
		},
		Inbox:     Inbox{Retention: 168 * time.Hour},
		Watchdog:  Watchdog{Interval: time.Minute, Batch: 100},
		Reconcile: defaultReconcile(),
		Console:   defaultConsole(),
		Shutdown:  Shutdown{Timeout: 25 * time.Second},
	}
}
