package testkit

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const howToStart = "run `make test`, or `scripts/stack up` first"

const (
	databaseVar   = "DATABASE_URL"
	amqpVar       = "AMQP_URL"
	managementVar = "MANAGEMENT_URL"
)

// service returns the URL of a service, or "" when there is none.
func service(t testing.TB, name string) string {
	t.Helper()
	if u := given(name); u != "" {
		return u
	}
	return stackEnv(t)["SUREFOOT_"+name]
}

func given(name string) string {
	if u := os.Getenv("SUREFOOT_" + name); u != "" {
		return u
	}
	return os.Getenv(name)
}

// stackEnv reads the exports that scripts/stack keeps in its directory; empty when there is no stack.
func stackEnv(t testing.TB) map[string]string {
	t.Helper()
	dir := os.Getenv("SUREFOOT_STACK_DIR")
	if dir == "" {
		dir = filepath.Join(repository(t), ".stack")
	}
	return readEnv(t, filepath.Join(dir, "env"))
}

func readEnv(t testing.TB, path string) map[string]string {
	t.Helper()
	vars := map[string]string{}
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return vars
	}
	require.NoError(t, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		key, value, ok := strings.Cut(strings.TrimPrefix(lines.Text(), "export "), "=")
		if ok {
			vars[key] = strings.Trim(value, "'")
		}
	}
	return vars
}

// managementURL is the management API's address: the given one, else that of the stack if its broker is used,
// else port 15672 of the AMQP host.
func managementURL(t testing.TB, amqpURL string) string {
	t.Helper()
	u := given(managementVar)
	if u == "" && given(amqpVar) == "" {
		u = stackEnv(t)["SUREFOOT_"+managementVar]
	}
	if u == "" {
		broker, err := url.Parse(amqpURL)
		require.NoError(t, err)
		u = "http://" + net.JoinHostPort(broker.Hostname(), "15672")
	}
	return strings.TrimSuffix(u, "/")
}

// repository finds the directory of go.mod above the test's directory.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	require.NoError(t, err)
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		require.NotEqual(t, "/", dir, "no go.mod above the working directory")
	}
}

// Name returns prefix, an underscore and eight random hexadecimal digits: fit for a schema, a queue, a vhost.
func Name(prefix string) string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails
	return prefix + "_" + hex.EncodeToString(b[:])
}
