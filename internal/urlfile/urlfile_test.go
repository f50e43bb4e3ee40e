package urlfile_test

import (
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/urlfile"
)

func TestAFileIsReadAnewEachTime(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a url?#%.txt")
	name := urlfile.Name(path, url.Values{"cacertfile": {"/c a"}})
	_, err := urlfile.Resolve(name)
	require.ErrorContains(t, err, "the file of a URL cannot be read: open "+path)
	for _, text := range []string{"amqp://ann:one@h/", "amqp://ann:two@h/"} {
		require.NoError(t, os.WriteFile(path, []byte("\n"+text+"\n"), 0o600))
		got, err := urlfile.Resolve(name)
		require.NoError(t, err)
		require.Equal(t, text+"?cacertfile=%2Fc+a", got)
	}
	for text, want := range map[string]string{
		" \n": "must hold one URL and nothing else", strings.Repeat("hunter2", 10_000): "must hold one URL and nothing else",
		"file:///etc/hunter2": "names another file instead of holding a URL",
	} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err = urlfile.Resolve(name)
		require.ErrorContains(t, err, path+" "+want)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

func TestAURLStandsForItself(t *testing.T) {
	t.Parallel()
	for _, raw := range []string{"", "amqp://ann:pw@h/", "host=h password=x", "postgres://ann:hun%zzter2@h/d"} {
		got, err := urlfile.Resolve(raw)
		require.NoError(t, err)
		require.Equal(t, raw, got)
	}
	for _, bad := range []string{"file://host/path", "file://", "file://%zz"} {
		_, err := urlfile.Resolve(bad)
		require.ErrorContains(t, err, "file:///path/of/the/file", bad)
	}
}

func TestParametersAreAddedUnlessTheyAreThere(t *testing.T) {
	t.Parallel()
	params := url.Values{"sslrootcert": {`/c'a\`}, "sslmode": {"verify-full"}}
	require.Equal(t, `postgres://ann:p%40w@h/d?sslmode=require&sslrootcert=%2Fc%27a%5C`, urlfile.With("postgres://ann:p%40w@h/d?sslmode=require", params))
	require.Equal(t, "postgres://ann:hun%zz@h/d", urlfile.With("postgres://ann:hun%zz@h/d", params), "not ours to complain of")
	require.Equal(t, "host=h", urlfile.With("host=h", nil))
	params.Del("sslrootcert")
	params.Set("application_name", `it's \ here`)
	config, err := pgconn.ParseConfig(urlfile.With("host=h user=ann password='p w' sslmode=disable", params))
	require.NoError(t, err)
	require.Equal(t, []any{"h", "p w", `it's \ here`}, []any{config.Host, config.Password, config.RuntimeParams["application_name"]})
	require.Nil(t, config.TLSConfig, "its own word counts")
}
