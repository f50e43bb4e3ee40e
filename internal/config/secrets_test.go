package config_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/config"
)

func TestWhereURLsComeFrom(t *testing.T) {
	t.Parallel()
	const file = "database: {url: postgres://file@h/d}"
	for name, tt := range map[string]struct {
		yaml    string
		environ []string
		flag    string
		want    string
	}{
		"nowhere":                           {"", nil, "", ""},
		"common variable":                   {"", []string{"DATABASE_URL=postgres://common@h/d"}, "", "postgres://common@h/d"},
		"common file":                       {"", []string{"DATABASE_URL_FILE=secret"}, "", "postgres://secret@h/d"},
		"file over common variable":         {file, []string{"DATABASE_URL=postgres://common@h/d"}, "", "postgres://file@h/d"},
		"our variable over both":            {file, []string{"DATABASE_URL=postgres://common@h/d", "SUREFOOT_DATABASE_URL=postgres://env@h/d"}, "", "postgres://env@h/d"},
		"our variable, empty":               {file, []string{"SUREFOOT_DATABASE_URL="}, "", "postgres://file@h/d"},
		"our secret file over the file":     {file, []string{"SUREFOOT_DATABASE_URL_FILE=secret"}, "", "postgres://secret@h/d"},
		"our variable over the file's file": {"database: {url_file: secret}", []string{"SUREFOOT_DATABASE_URL=postgres://env@h/d"}, "", "postgres://env@h/d"},
		"secret file of the file":           {"database: {url_file: secret}", nil, "", "postgres://secret@h/d"},
		"flag over a secret file":           {"", []string{"SUREFOOT_DATABASE_URL_FILE=secret"}, "postgres://flag@h/d", "postgres://flag@h/d"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := config.Sources{
				ReadFile: files{config.DefaultFile: tt.yaml, "secret": "postgres://secret@h/d\n"}.read, Environ: tt.environ,
			}
			if tt.flag != "" {
				src.Flags = []config.Flag{{Name: "--database-url", Key: "database.url", Text: tt.flag}}
			}
			got, err := config.Load(src)
			require.NoError(t, err)
			require.Equal(t, tt.want, got.Database.URL.Reveal())
		})
	}
}

func TestSecretFaults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		environ []string
		want    string
	}{
		"both": {
			[]string{"SUREFOOT_AMQP_URL=amqp://h", "SUREFOOT_AMQP_URL_FILE=secret"},
			"SUREFOOT_AMQP_URL: amqp.url: is set, and so is amqp.url_file: keep one of them",
		},
		"missing": {
			[]string{"SUREFOOT_AMQP_URL_FILE=nowhere"},
			"SUREFOOT_AMQP_URL_FILE: amqp.url_file: cannot be read: open nowhere: file does not exist",
		},
		"empty": {
			[]string{"SUREFOOT_AMQP_URL_FILE=empty"},
			"SUREFOOT_AMQP_URL_FILE: amqp.url_file: must hold one URL and nothing else",
		},
		"no certificate": {
			[]string{"SUREFOOT_AMQP_URL=amqps://h", "SUREFOOT_AMQP_CA_FILE=empty"},
			"SUREFOOT_AMQP_CA_FILE: amqp.ca_file: empty holds no certificate in PEM form",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := config.Load(config.Sources{
				ReadFile: files{"secret": "amqp://h", "empty": " \n"}.read, Environ: tt.environ, AMQP: true,
			})
			requireFaults(t, err, tt.want)
		})
	}
}

func TestManagementURLFollowsTheBroker(t *testing.T) {
	t.Parallel()
	for broker, want := range map[string]string{
		"amqp://ann:p%40ss@rabbit:5999/shop": "http://ann:p%40ss@rabbit:15672",
		"amqps://ann:pw@rabbit/shop":         "https://ann:pw@rabbit:15671",
		"amqp://ann:pw@a:5671,b:5672/shop":   "http://ann:pw@a:15672",
		"amqp://rabbit":                      "http://guest:guest@rabbit:15672",
		"amqp://ann:pw@[::1]:5672/":          "http://ann:pw@[::1]:15672",
	} {
		got, err := config.Load(config.Sources{ReadFile: files{}.read, Environ: []string{"AMQP_URL=" + broker}})
		require.NoError(t, err)
		require.Equal(t, want, got.AMQP.ManagementURL.Reveal())
	}
	for given, want := range map[string]string{"http://m:1": "http://ann:pw@m:1", "http://bob:x@m:1/p": "http://bob:x@m:1/p"} {
		got, err := config.Load(config.Sources{
			ReadFile: files{}.read, Environ: []string{"AMQP_URL=amqp://ann:pw@h", "MANAGEMENT_URL=" + given},
		})
		require.NoError(t, err)
		require.Equal(t, want, got.AMQP.ManagementURL.Reveal())
	}
}

// secretURLs hold the password "hunter2" in ways that confuse parsers.
func secretURLs() []string {
	return []string{
		"postgres://ann:hunter2@h:5432/d", "postgres://ann:hunter2#x@h/d", "postgres://ann:hunter2/x@h/d",
		"postgres://ann:hunter2?x@h/d", "postgres://ann:hunter2%@h/d", "postgres://ann:hunter2 x@h/d",
		"postgres://h:hunter2", "postgres://h/d?password=hunter2&sslmode=nonsense", "host=h password=hunter2 port=x",
		"ann:hunter2@h", "amqp://ann:hunter2@h:port/", "http://ann:hunter2@h:port", "://ann:hunter2@h",
		"postgres://ann:5432/hunter2@h/d",
	}
}

func TestNoPasswordInFaults(t *testing.T) {
	t.Parallel()
	for _, secret := range secretURLs() {
		for _, name := range []string{"SUREFOOT_DATABASE_URL", "SUREFOOT_AMQP_URL", "SUREFOOT_MANAGEMENT_URL"} {
			_, err := config.Load(config.Sources{ReadFile: files{}.read, Environ: []string{name + "=" + secret}})
			if err != nil {
				require.NotContains(t, err.Error(), "hunter2", "%s=%s", name, secret)
			}
		}
		_, err := load("amqp:\n  url: \"" + secret + "\n")
		require.Error(t, err)
		require.NotContains(t, err.Error(), "hunter2", secret)
		_, err = load("database: {url: [" + secret + "]}\n")
		require.Error(t, err)
		require.NotContains(t, err.Error(), "hunter2", secret)
	}
}

func TestNoPasswordInPrints(t *testing.T) {
	t.Parallel()
	for _, secret := range secretURLs() {
		url := config.URL(secret)
		text, err := json.Marshal(url)
		require.NoError(t, err)
		c := config.Config{Database: config.Database{URL: url}}
		for _, print := range []string{
			url.String(), string(text), fmt.Sprint(url), fmt.Sprintf("%s %q %v %+v %#v", url, url, url, c, c),
		} {
			require.NotContains(t, print, "hunter2", secret)
		}
	}
	require.Equal(t, "postgres://ann@h:5432/d", config.URL("postgres://ann:hunter2@h:5432/d?sslmode=disable").String())
	require.Empty(t, config.URL("").String())
}

func TestUnusableURLs(t *testing.T) {
	t.Parallel()
	for name, value := range map[string]string{
		"SUREFOOT_DATABASE_URL":   "postgres://ann:pw@h:port/d",
		"SUREFOOT_AMQP_URL":       "http://ann:pw@h",
		"SUREFOOT_MANAGEMENT_URL": "amqp://ann:pw@h",
	} {
		_, err := config.Load(config.Sources{ReadFile: files{}.read, Environ: []string{name + "=" + value}})
		require.ErrorContains(t, err, name+": ", name)
		require.ErrorContains(t, err, "is no usable URL (not shown: it may hold a password)")
	}
}
