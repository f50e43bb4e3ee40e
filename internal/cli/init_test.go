package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/cli"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestInitNeverOverwrites(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "surefoot.yaml")
	dry := run(t, env(""), "init", "--output", file, "--dry-run")
	require.Zero(t, dry.code, dry.stderr)
	require.NoFileExists(t, file)
	got := run(t, env(""), "init", "--output", file)
	require.Equal(t, result{0, "", "wrote " + file + "; its first lines say what comes next\n"}, got)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, dry.stdout, string(text))

	require.NoError(t, os.WriteFile(file, []byte("mine"), 0o600))
	again := run(t, env(""), "init", "--output", file)
	require.Equal(t, cli.ExitUsage, again.code)
	require.Contains(t, again.stderr, "is there already, and stays as it is\nhint: take another name with --output")
	text, err = os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "mine", string(text))

	require.Equal(t, cli.ExitFailed, run(t, env(""), "init", "--output", filepath.Join(file, "below")).code)
}

// It is valid as it is, and with every setting that stands in its comments.
func TestInitWritesWhatIsValid(t *testing.T) {
	t.Parallel()
	text := run(t, env(""), "init", "--dry-run").stdout
	all := regexp.MustCompile(`(?m)^ *#url_file.*\n`).ReplaceAllString(text, "") // instead of url, not beside it
	all = regexp.MustCompile(`(?m)^( *)#(\S)`).ReplaceAllString(all, "$1$2")
	require.Contains(t, all, "\nwatchdog:\n")
	for _, yaml := range []string{text, all} {
		_, err := config.Load(config.Sources{Path: "surefoot.yaml", ReadFile: func(string) ([]byte, error) { return []byte(yaml), nil }})
		require.NoError(t, err)
	}
}

// A newcomer's way: the file that init writes, migrated and applied, is healthy.
func TestInitLeadsToAHealthySetUp(t *testing.T) {
	t.Parallel()
	db, broker := testkit.Database(t), testkit.Broker(t)
	e := env(run(t, env(""), "init", "--dry-run").stdout)
	e.Environ = []string{
		"SUREFOOT_DATABASE_URL=" + db.URL, "SUREFOOT_SCHEMA=" + db.Schema, "SUREFOOT_AMQP_URL=" + broker.URL, "SUREFOOT_MANAGEMENT_URL=" + broker.ManagementURL,
	}
	require.Zero(t, run(t, e, "topology", "apply", "--yes").code)
	got := run(t, e, "doctor", "--problems")
	require.Equal(t, result{0, "", "all is well\n"}, got)
}
