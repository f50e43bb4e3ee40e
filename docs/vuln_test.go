package docs_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// vuln runs scripts/vuln on one small package, with a database of vulnerabilities.
func vuln(t *testing.T, database string) (code int, out string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds govulncheck")
	}
	command := exec.CommandContext(t.Context(), "../scripts/vuln", "./internal/urlfile")
	command.Env = append(os.Environ(), "GOVULNDB="+database)
	text, err := command.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), string(text)
	}
	require.NoError(t, err, "%s", text)
	return 0, string(text)
}

func TestAVulnerabilityThatTheCodeReachesIsFound(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"index/db.json":      `{"modified":"2026-01-01T00:00:00Z"}`,
		"index/modules.json": `[{"path":"stdlib","vulns":[{"id":"GO-2099-0001","modified":"2026-01-01T00:00:00Z"}]}]`,
		"index/vulns.json":   `[{"id":"GO-2099-0001","modified":"2026-01-01T00:00:00Z"}]`,
		"ID/GO-2099-0001.json": `{"schema_version":"1.3.1","id":"GO-2099-0001","modified":"2026-01-01T00:00:00Z","published":"2026-01-01T00:00:00Z","details":"made up","database_specific":{"url":"https://example.org"},
			"affected":[{"package":{"name":"stdlib","ecosystem":"Go"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"}]}],
			"ecosystem_specific":{"imports":[{"path":"net/url","symbols":["Parse"]}]}}]}`,
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	}
	code, out := vuln(t, "file://"+dir)
	require.Equal(t, 3, code, out)
	require.Contains(t, out, "GO-2099-0001")
}

// Silence would pass for "none".
func TestADatabaseOfVulnerabilitiesOutOfReachIsSaid(t *testing.T) {
	t.Parallel()
	code, out := vuln(t, "http://127.0.0.1:1")
	require.Equal(t, 5, code, out)
	require.Contains(t, out, "the database of vulnerabilities at http://127.0.0.1:1 cannot be reached: nothing was checked")
}
