// Package docs_test holds the documents to the code.
package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// documents are the files whose words are checked, from this directory.
func documents(t *testing.T) map[string]string {
	t.Helper()
	names := []string{"../README.md", "../CONTRIBUTING.md", "../SECURITY.md"}
	for _, pattern := range []string{"*.md", "runbooks/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		names = append(names, found...)
	}
	texts := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		texts[name] = string(text)
	}
	return texts
}

var (
	proof    = regexp.MustCompile("(?s)Proven by:(.*?)\n\n")
	anyName  = regexp.MustCompile("`([A-Za-z0-9/]+)`")
	command  = regexp.MustCompile("`surefoot ([a-z]+(?: [a-z][a-z-]*)?)([^`]*)`")
	line     = regexp.MustCompile(`(?m)^(?:bin/)?surefoot ([a-z]+(?: [a-z][a-z-]*)?)([^#\n]*)`) // of a block of commands
	flagName = regexp.MustCompile(`--[a-z][a-z-]*`)
	operand  = regexp.MustCompile(`^ [A-Z]{2,}\b`)
)

func TestEveryTestThatProvesAGuaranteeExists(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("guarantees.md")
	require.NoError(t, err)
	proofs := proof.FindAllStringSubmatch(string(text)+"\n\n", -1)
	require.Len(t, proofs, 10, "one list of tests per guarantee")
	for _, p := range proofs {
		pkg := ""
		for _, name := range anyName.FindAllStringSubmatch(p[1], -1) {
			if !strings.HasPrefix(name[1], "Test") {
				pkg = name[1]
				continue
			}
			require.Contains(t, testsOf(t, pkg), name[1], "docs/guarantees.md names a test that package %s does not have", pkg)
		}
	}
}

func testsOf(t *testing.T, pkg string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", pkg, "*_test.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files, "package %q has no tests", pkg)
	var names []string
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

func TestEveryCommandAndFlagExists(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the binary")
	}
	binary, helps := testkit.Binary(t), map[string]string{}
	for name, text := range documents(t) {
		for _, found := range append(command.FindAllStringSubmatch(text, -1), line.FindAllStringSubmatch(text, -1)...) {
			help, seen := helps[found[1]]
			if !seen {
				out, err := exec.CommandContext(t.Context(), binary, append(strings.Fields(found[1]), "--help")...).CombinedOutput()
				require.NoError(t, err, "%s: `surefoot %s` does not exist: %s", name, found[1], out)
				help = string(out)
				require.Contains(t, help, "surefoot "+found[1], "%s: `surefoot %s` is not a command", name, found[1])
				helps[found[1]] = help
			}
			for _, flag := range flagName.FindAllString(found[2], -1) {
				require.Contains(t, help, flag, "%s: `surefoot %s` has no flag %s", name, found[1], flag)
			}
			if operand.MatchString(found[2]) {
				require.Regexp(t, `(?m)^  surefoot `+found[1]+` \[?[A-Z]{2,}`, help, "%s: `surefoot %s%s`: it takes none", name, found[1], found[2])
			}
		}
	}
	require.Greater(t, len(helps), 10, "commands found in the documents")
}

func TestLocalLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#:]+)\)`)
	for name, text := range documents(t) {
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(name), found[1]))
			require.NoError(t, err, "%s links to %s", name, found[1])
		}
	}
}

// The README's Go example compiles, inside a function that declares what it takes for granted.
func TestTheGoExampleCompiles(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindStringSubmatch(string(text))
	require.NotNil(t, block, "README.md has a Go example")
	program := `package main

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

func main() { _ = example }

func example(ctx context.Context, tx pgx.Tx, pool *pgxpool.Pool, orderID, amqpURL string, body []byte) error {
` + block[1] + "\treturn err\n}\n"
	compiles(t, program)
}

// compiles builds a program of package main in the module.
func compiles(t *testing.T, program string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(program), 0o600))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", os.DevNull, file)
	build.Dir = ".."
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// What docs/sql.md shows is what PostgreSQL takes, and its table has every argument of the function.
func TestTheSQLExamplesRun(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("sql.md")
	require.NoError(t, err)
	db := testkit.Database(t)
	_, err = pg.Migrate(t.Context(), pg.MigrateOptions{URL: db.URL, Schema: db.Schema})
	require.NoError(t, err)
	_, err = db.Pool.Exec(t.Context(), `CREATE TABLE `+db.Schema+`.orders (id integer, status text)`)
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	require.Len(t, blocks, 2)
	for _, block := range blocks {
		sql := strings.NewReplacer("surefoot.", db.Schema+".", "SCHEMA surefoot", "SCHEMA "+db.Schema, "UPDATE orders", "UPDATE "+db.Schema+".orders",
			"TO app", "TO CURRENT_USER").Replace(block[1])
		_, err := db.Pool.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	var rows int
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+db.Schema+`.outbox WHERE key = '42'`).Scan(&rows))
	require.Equal(t, 1, rows)
	var arguments []string
	require.NoError(t, db.Pool.QueryRow(t.Context(), `SELECT proargnames FROM pg_proc WHERE oid = '`+db.Schema+`.enqueue'::regproc`).Scan(&arguments))
	for _, argument := range arguments {
		require.Contains(t, string(text), "`"+argument, "docs/sql.md has every argument of enqueue")
	}
}

// Every configuration that the documents show is one that Surefoot takes.
func TestTheConfigurationExamplesLoad(t *testing.T) {
	t.Parallel()
	block := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	seen, files := 0, secretFiles(t)
	for name, text := range documents(t) {
		for _, found := range block.FindAllStringSubmatch(text, -1) {
			indent := found[1][:len(found[1])-len(strings.TrimLeft(found[1], " "))]
			yaml := strings.ReplaceAll("\n"+found[1], "\n"+indent, "\n")
			_, err := config.Load(config.Sources{Path: name, ReadFile: func(path string) ([]byte, error) {
				if path != name {
					return files(path)
				}
				return []byte(yaml), nil
			}})
			require.NoError(t, err, "%s", yaml)
			seen++
		}
	}
	require.GreaterOrEqual(t, seen, 2)
}

// secretFiles are what the examples name: certificates, keys, URLs.
func secretFiles(t *testing.T) func(path string) ([]byte, error) {
	t.Helper()
	authority := testkit.NewAuthority(t)
	pair := authority.Issue(t, testkit.Certificate{})
	return func(path string) ([]byte, error) {
		switch base := filepath.Base(path); {
		case base == "ca.pem":
			return os.ReadFile(authority.File)
		case strings.HasSuffix(base, "-key.pem"):
			return os.ReadFile(pair.Key)
		case filepath.Ext(base) == ".pem":
			return os.ReadFile(pair.Cert)
		case base == "database-url":
			return []byte("postgres://surefoot:secret@db.example.org/shop"), nil
		}
		return []byte("amqps://surefoot:secret@mq.example.org:5671/"), nil
	}
}
