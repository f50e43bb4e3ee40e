package deploy_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// files are the texts that name commands, variables and paths, by their names.
func files(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"Dockerfile", "compose.yaml", "systemd/*.service", "systemd/*.d/*.conf", "kubernetes/*.yaml", "kubernetes/*/*.yaml", "postgres/*.sql"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		for _, name := range found {
			texts[name] = read(t, name)
		}
	}
	return texts
}

var (
	unitCommand = regexp.MustCompile(`(?m)^ExecStart=/usr/local/bin/surefoot (.*)$`)
	listCommand = regexp.MustCompile(`(?m)^ *(?:args|command): \[(.*)\]$`)
	variable    = regexp.MustCompile(`SUREFOOT_[A-Z_]*[A-Z]`)
	repoPath    = regexp.MustCompile(`\b(?:deploy|docs|examples)/[a-z0-9/._-]*[a-z]`)
)

// commands are the command lines of the binary in the files.
func commands(t *testing.T) map[string][]string {
	t.Helper()
	lines := map[string][]string{}
	for name, text := range files(t) {
		for _, found := range unitCommand.FindAllStringSubmatch(text, -1) {
			for _, role := range []string{"relay", "consume", "watchdog", "reconcile"} {
				line := strings.Fields(strings.ReplaceAll(found[1], "%i", role))
				lines[name+" "+strings.Join(line, " ")] = line
			}
		}
		if name != "compose.yaml" && !strings.HasPrefix(name, "kubernetes") {
			continue
		}
		for _, found := range listCommand.FindAllStringSubmatch(text, -1) {
			line := strings.Split(found[1], ", ")
			if !slices.Contains([]string{"postgres", "provider", "all"}, line[0]) && found[1] != "migrate" { // PostgreSQL's, and the shop's
				lines[name+" "+found[1]] = line
			}
		}
	}
	return lines
}

func TestEveryCommandAndFlagExists(t *testing.T) {
	t.Parallel()
	lines := commands(t)
	require.Greater(t, len(lines), 10)
	for name, line := range lines {
		var words []string
		for _, word := range line {
			if strings.HasPrefix(word, "-") {
				break
			}
			words = append(words, word)
		}
		help := surefoot(t, nil, append(words, "--help")...)
		require.Zero(t, help.code, "%s: %s", name, help.stderr)
		require.Contains(t, help.stdout, "surefoot "+strings.Join(words, " "), name)
		for _, word := range line {
			if strings.HasPrefix(word, "--") {
				require.Contains(t, help.stdout, word, name)
			}
		}
	}
}

// A variable that is known minds nonsense in it; one that is not known is left alone.
func TestEveryVariableExists(t *testing.T) {
	t.Parallel()
	load := func(name string) error {
		_, err := config.Load(config.Sources{Environ: []string{name + "=nonsense"}, ReadFile: func(path string) ([]byte, error) {
			if path == "nonsense" {
				return nil, fmt.Errorf("read %s: %w", path, os.ErrNotExist)
			}
			return nil, os.ErrNotExist
		}})
		if name == "SUREFOOT_CONFIG" { // read by the caller
			return os.ErrNotExist
		}
		return err
	}
	require.NoError(t, load("SUREFOOT_BETWEEN_OTHERS"))
	seen := map[string]bool{}
	for file, text := range files(t) {
		for _, name := range variable.FindAllString(text, -1) {
			require.Error(t, load(name), "%s: %s", file, name)
			require.NotContains(t, load(name).Error(), "unknown variable", file)
			seen[name] = true
		}
	}
	require.Greater(t, len(seen), 5)
}

func TestEveryPathAndPortExists(t *testing.T) {
	t.Parallel()
	for file, text := range files(t) {
		for _, path := range repoPath.FindAllString(text, -1) {
			if path == "deploy/systemd/surefoot" { // surefoot@*
				continue
			}
			_, err := os.Stat(filepath.Join("..", path))
			require.NoError(t, err, file)
		}
	}
	port := config.Default().HTTP.Listen
	require.Equal(t, ":9464", port)
	require.Contains(t, read(t, "Dockerfile"), "EXPOSE 9464")
	require.Contains(t, read(t, "compose.yaml"), port+`"]`)
}

// The example configuration is one that the binary takes.
func TestTheKubernetesConfigurationLoads(t *testing.T) {
	t.Parallel()
	got := surefoot(t, []string{"SUREFOOT_CONFIG=deploy/kubernetes/surefoot.yaml"}, "topology", "export")
	require.Zero(t, got.code, got.stderr)
}

// The final image has no more than it is given, and nobody in it is root.
func TestTheImageIsFromScratch(t *testing.T) {
	t.Parallel()
	text := read(t, "Dockerfile")
	stages := strings.Split("\n"+text, "\nFROM ")[1:]
	require.Len(t, stages, 3)
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "../go.mod"))[1]
	require.True(t, strings.HasPrefix(stages[0], "golang:"+version+"-"), "the Go of go.mod")
	require.Equal(t, 2, strings.Count(stages[0], "CGO_ENABLED=0 go build"))
	for _, stage := range stages[1:] {
		require.True(t, strings.HasPrefix(stage, "scratch"))
		require.Contains(t, stage, "USER 65532:65532")
		require.NotContains(t, stage, "RUN ")
	}
}

// systemd takes the units, and leaves more time than the shutdown needs.
func TestUnitsAreValid(t *testing.T) {
	t.Parallel()
	stop := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)$`)
	for _, name := range []string{"systemd/surefoot.service", "systemd/surefoot@.service"} {
		seconds, err := strconv.Atoi(stop.FindStringSubmatch(read(t, name))[1])
		require.NoError(t, err)
		require.Greater(t, time.Duration(seconds)*time.Second, config.Default().Shutdown.Timeout, name)
	}
	if testing.Short() {
		t.Skip("builds the binary")
	}
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed: the units are not verified")
	}
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS("systemd")))
	for _, name := range []string{"surefoot.service", "surefoot@.service"} {
		text := strings.ReplaceAll(read(t, "systemd/"+name), "/usr/local/bin/surefoot", testkit.Binary(t))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	for _, unit := range []string{"surefoot.service", "surefoot@relay.service", "surefoot@consume.service", "surefoot@watchdog.service", "surefoot@reconcile.service"} {
		cmd := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", "--recursive-errors=no", unit)
		cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s: %s", unit, out)
		require.Empty(t, string(out), unit)
	}
}
