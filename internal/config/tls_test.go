package config_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/internal/urlfile"
)

// environment loads what the variables say, with the disk's files.
func environment(t *testing.T, environ ...string) (*config.Config, error) {
	t.Helper()
	return config.Load(config.Sources{Path: os.DevNull, ReadFile: os.ReadFile, Environ: environ})
}

func TestFilesForTLSBecomeParametersOfTheURLs(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t)
	pair := authority.Issue(t, testkit.Certificate{})
	files := func(section string) []string {
		return []string{"SUREFOOT_" + section + "_CA_FILE=" + authority.File, "SUREFOOT_" + section + "_CERT_FILE=" + pair.Cert, "SUREFOOT_" + section + "_KEY_FILE=" + pair.Key}
	}
	environ := append(files("DATABASE"), files("AMQP")...)
	c, err := environment(t, append(environ, "DATABASE_URL=postgres://ann:pw@h/d", "SUREFOOT_RELAY_LISTEN_URL=postgres://ann:pw@direct/d?sslmode=verify-ca",
		"AMQP_URL=amqps://ann:pw@h", "SUREFOOT_AMQP_SERVER_NAME=mq")...)
	require.NoError(t, err)
	of := func(raw string, more ...string) string { return testkit.WithQuery(t, raw, more...) }
	database := []string{"sslrootcert", authority.File, "sslcert", pair.Cert, "sslkey", pair.Key}
	require.Equal(t, of("postgres://ann:pw@h/d", append(database, "sslmode", "verify-full")...), c.Database.URL.Reveal())
	require.Equal(t, c.Database.URL, c.Database.Source)
	require.Equal(t, of("postgres://ann:pw@direct/d", append(database, "sslmode", "verify-ca")...), c.Relay.ListenSource.Reveal())
	broker := of("amqps://ann:pw@h", "cacertfile", authority.File, "certfile", pair.Cert, "keyfile", pair.Key, "server_name_indication", "mq")
	require.Equal(t, []string{broker, broker}, []string{c.AMQP.URL.Reveal(), c.AMQP.Source.Reveal()})
	require.Equal(t, []string{"https://ann:pw@h:15671", "https://h:15671"}, []string{c.AMQP.ManagementURL.Reveal(), c.AMQP.ManagementSource.Reveal()})
	trust := c.AMQP.TLS()
	require.Len(t, trust.Certificates, 1)
	require.NotNil(t, trust.RootCAs)
	require.Equal(t, "mq", trust.ServerName)

	path := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(path, []byte("amqps://ann:pw@h\n"), 0o600))
	c, err = environment(t, append(files("AMQP"), "AMQP_URL_FILE="+path, "SUREFOOT_AMQP_SERVER_NAME=mq")...)
	require.NoError(t, err)
	require.Equal(t, broker, c.AMQP.URL.Reveal())
	live, err := urlfile.Resolve(c.AMQP.Source.Reveal())
	require.NoError(t, err)
	require.Equal(t, broker, live)
	require.Contains(t, c.AMQP.Source.Reveal(), "file:///", "where a program runs on, it reads the file again")

	c, err = environment(t, "DATABASE_URL=host=h password=pw", "AMQP_URL=amqp://ann:pw@h", "MANAGEMENT_URL=http://m:1")
	require.NoError(t, err)
	require.Equal(t, "host=h password=pw", c.Database.Source.Reveal(), "nothing is added without files")
	require.Nil(t, c.AMQP.TLS())
	require.Equal(t, "http://m:1", c.AMQP.ManagementSource.Reveal())
}

func TestFaultsOfTLS(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t)
	pair := authority.Issue(t, testkit.Certificate{})
	const unencrypted = "is set, but by its sslmode database.url can go without TLS: take sslmode out of it, which is verify-full then, or say verify-full"
	for name, tt := range map[string]struct{ environ, want []string }{
		"each is named": {
			[]string{"SUREFOOT_DATABASE_CA_FILE=/no/ca", "SUREFOOT_DATABASE_CERT_FILE=/no/cert", "SUREFOOT_DATABASE_KEY_FILE=" + pair.Key, "SUREFOOT_AMQP_KEY_FILE=" + pair.Key},
			[]string{
				"SUREFOOT_DATABASE_CA_FILE: database.ca_file: cannot be read: open /no/ca: no such file or directory",
				"SUREFOOT_DATABASE_CERT_FILE: database.cert_file: cannot be read: open /no/cert: no such file or directory",
				os.DevNull + ": amqp.cert_file: and key_file belong together: set both or none of them",
			},
		},
		"of the URL": {
			[]string{"DATABASE_URL=postgres://ann:hunter2@h/d?sslmode=verify-full&sslrootcert=/no/ca"},
			[]string{"DATABASE_URL: database.url: names files for TLS that cannot be used: unable to read CA file: open /no/ca: no such file or directory"},
		},
		"disabled": {
			[]string{"DATABASE_URL=postgres://h/d?sslmode=disable", "SUREFOOT_DATABASE_CA_FILE=" + authority.File},
			[]string{"SUREFOOT_DATABASE_CA_FILE: database.ca_file: " + unencrypted},
		},
		"preferred": {
			[]string{"DATABASE_URL=host=h sslmode=prefer", "SUREFOOT_DATABASE_CERT_FILE=" + pair.Cert, "SUREFOOT_DATABASE_KEY_FILE=" + pair.Key},
			[]string{"SUREFOOT_DATABASE_CERT_FILE: database.cert_file: " + unencrypted},
		},
		"amqp": {
			[]string{"AMQP_URL=amqp://h", "SUREFOOT_AMQP_SERVER_NAME=h"},
			[]string{"SUREFOOT_AMQP_SERVER_NAME: amqp.server_name: is set, but amqp.url is without TLS: write amqps:// and the port of the broker's TLS listener, 5671 by default"},
		},
		"amqp, but https": {[]string{"AMQP_URL=amqp://h", "MANAGEMENT_URL=https://h", "SUREFOOT_AMQP_CA_FILE=" + authority.File}, nil},
		"require":         {[]string{"DATABASE_URL=postgres://h/d?sslmode=require", "SUREFOOT_DATABASE_CA_FILE=" + authority.File}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := environment(t, tt.environ...)
			if tt.want == nil {
				require.NoError(t, err)
				return
			}
			requireFaults(t, err, tt.want...)
		})
	}
}
