// Package child has what drills and benchmarks give to the processes of this program that they start, and what they look at of them: an environment
// without the caller's configuration, the end of what a process says, and its memory.
package child

import (
	"path/filepath"
	"slices"
	"strings"
)

// Services are what a process works with.
type Services struct {
	// DatabaseURL and AMQPURL. Required.
	DatabaseURL, AMQPURL string
	// ManagementURL of RabbitMQ. Default: the process finds it by AMQPURL.
	ManagementURL string
	// CAFile is trusted for amqps and https; relative to this process. Default: the system's authorities.
	CAFile string
	// Schema in the database, and the relay's exchange. Required.
	Schema, Exchange string
}

// foreign begin the names of what could configure a process otherwise.
var foreign = []string{"SUREFOOT_", "DATABASE_URL", "AMQP_URL", "MANAGEMENT_URL", "OTEL_"}

// Environ is the caller's environment with these services and no other configuration, and what more there is. Probes are served on a free port.
func (s Services) Environ(caller []string, more ...string) []string {
	env := slices.DeleteFunc(slices.Clone(caller), func(entry string) bool {
		return slices.ContainsFunc(foreign, func(prefix string) bool { return strings.HasPrefix(entry, prefix) })
	})
	env = append(env, "SUREFOOT_DATABASE_URL="+s.DatabaseURL, "SUREFOOT_AMQP_URL="+s.AMQPURL, "SUREFOOT_SCHEMA="+s.Schema,
		"SUREFOOT_RELAY_EXCHANGE="+s.Exchange, "SUREFOOT_HTTP_LISTEN=127.0.0.1:0")
	if s.ManagementURL != "" {
		env = append(env, "SUREFOOT_MANAGEMENT_URL="+s.ManagementURL)
	}
	if s.CAFile != "" {
		if file, err := filepath.Abs(s.CAFile); err == nil { // the process works elsewhere
			env = append(env, "SUREFOOT_AMQP_CA_FILE="+file)
		}
	}
	return append(env, more...)
}
