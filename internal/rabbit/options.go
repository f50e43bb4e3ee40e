package rabbit

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"
)

// Options say how to reach the broker and who is calling.
type Options struct {
	// URL is amqp:// or amqps://, with user, password and vhost, and with one host or several, separated by commas: the nodes of a cluster, each
	// dial goes to one of them at random, and to another when it does not answer. Or file:///path of a file that holds such a URL and is read for
	// each dial. Required.
	URL string
	// Role is the part of Surefoot that connects, such as "relay"; it is part of the connection's name; required.
	Role string
	// Host is this machine's name, part of the connection's name; default "unknown".
	Host string
	// Version is Surefoot's version, part of the connection's name; default "dev".
	Version string
	// Heartbeat bounds how long a dead peer stays unnoticed, about twice this; a smaller one in the URL wins; at least 1 s; default 10 s.
	Heartbeat time.Duration
	// DialTimeout bounds connecting with TLS and AMQP handshakes; default 10 s.
	DialTimeout time.Duration
	// WriteTimeout bounds every write to the socket; default 10 s.
	WriteTimeout time.Duration
	// RPCTimeout bounds every request that waits for the broker's answer; default 10 s.
	RPCTimeout time.Duration
	// TLS is used for amqps URLs, cloned for every dial; default: from the URL's parameters cacertfile, certfile, keyfile and
	// server_name_indication; the files are read for each dial.
	TLS *tls.Config
	// Logger gets a line when a session fails for a new reason, when the broker is reachable again, and for a panic; default none, and standard error for a panic.
	Logger zerolog.Logger
}

func (o Options) withDefaults() Options {
	o.Host = cmp.Or(o.Host, "unknown")
	o.Version = cmp.Or(o.Version, "dev")
	o.Heartbeat = cmp.Or(o.Heartbeat, 10*time.Second)
	o.DialTimeout = cmp.Or(o.DialTimeout, 10*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 10*time.Second)
	o.RPCTimeout = cmp.Or(o.RPCTimeout, 10*time.Second)
	return o
}

// Validate reports every fault at once, without the password.
func (o Options) Validate() error {
	var faults []error
	if _, err := parseURL(o.URL); err != nil {
		faults = append(faults, err)
	}
	if o.Role == "" {
		faults = append(faults, errors.New("rabbit: Role is empty; name the part that connects, such as \"relay\""))
	}
	if o.Heartbeat != 0 && o.Heartbeat < time.Second {
		faults = append(faults, fmt.Errorf("rabbit: Heartbeat is %s; AMQP counts whole seconds, use at least 1s", o.Heartbeat))
	}
	for name, d := range map[string]time.Duration{"DialTimeout": o.DialTimeout, "WriteTimeout": o.WriteTimeout, "RPCTimeout": o.RPCTimeout} {
		if d < 0 {
			faults = append(faults, fmt.Errorf("rabbit: %s is negative", name))
		}
	}
	return errors.Join(faults...)
}

// connectionName is what the management page shows.
func (o Options) connectionName() string {
	return fmt.Sprintf("surefoot %s %s %s", o.Role, o.Host, o.Version)
}
