package telemetry_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// fieldMethods are those of zerolog whose first argument names a field.
var fieldMethods = []string{
	"Str", "Strs", "Stringer", "Stringers", "Bytes", "Hex", "RawJSON", "AnErr", "Errs", "Bool", "Int", "Ints", "Int8", "Int16", "Int32", "Int64",
	"Uint", "Uint8", "Uint16", "Uint32", "Uint64", "Float32", "Float64", "Time", "Dur", "TimeDiff", "Any", "Interface", "IPAddr", "Object", "Array", "Dict",
}

// synonyms are what a field is not called, and what it is called.
var synonyms = map[string]string{
	"id": "event_id", "message_id": "event_id", "msg_id": "event_id", "message": "event_id", "event": "event_id",
	"event_type": "type", "message_type": "type", "routing": "routing_key",
	"attempts": "attempt", "attempt_number": "attempt", "ordering_key": "key", "queue_name": "queue",
	"class": "error_class", "error_type": "error_class", "error_kind": "error_class", "err": "error", "cause": "error", "sql_state": "sqlstate", "code_sql": "sqlstate",
	"request": "request_id", "trace": "stack", "stacktrace": "stack", "run_id": "run", "why": "reason", "operator": "who", "by": "who", "user": "who",
}

// Whoever searches the logs for a field finds it under one name: in snake case, by the constant where there is one, and never under a synonym.
// Examples, drills and benchmarks do not log for operators.
func TestLogFieldsAreNamedAlikeEverywhere(t *testing.T) {
	t.Parallel()
	constants := fieldConstants(t)
	form := regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	seen := map[string]bool{}
	for at, call := range fieldCalls(t) {
		switch name := call.Args[0].(type) {
		case *ast.BasicLit:
			field, err := strconv.Unquote(name.Value)
			require.NoError(t, err)
			require.Regexp(t, form, field, at)
			require.NotContains(t, synonyms, field, "%s: call the field %s", at, synonyms[field])
			require.NotContains(t, constants, field, "%s: write telemetry.%s", at, constants[field])
			seen[field] = true
		case *ast.SelectorExpr:
			seen[name.Sel.Name] = true
		}
	}
	require.Greater(t, len(seen), 40, "fields found in the source")
	for field, constant := range constants {
		require.NotContains(t, synonyms, field)
		require.True(t, seen[constant], "no line has the field %s any more", constant)
	}
}

// fieldConstants maps a field to the constant that names it.
func fieldConstants(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "fields.go", nil, 0)
	require.NoError(t, err)
	constants := map[string]string{}
	for _, decl := range file.Decls {
		for _, spec := range decl.(*ast.GenDecl).Specs {
			value := spec.(*ast.ValueSpec)
			text, err := strconv.Unquote(value.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			constants[text] = value.Names[0].Name
		}
	}
	return constants
}

// fieldCalls are the calls in the source that name a field of a log line, by where they are.
func fieldCalls(t *testing.T) map[string]*ast.CallExpr {
	t.Helper()
	calls := map[string]*ast.CallExpr{}
	root := "../.."
	leftOut := []string{"examples", "scripts", "bin", "internal/bench", "internal/drill", "internal/demo", "internal/crash", "internal/testkit", "internal/model"}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			inside, _ := filepath.Rel(root, path)
			if slices.Contains(leftOut, filepath.ToSlash(inside)) || strings.HasPrefix(entry.Name(), ".") && path != root {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(source), `"github.com/rs/zerolog"`) && !strings.Contains(string(source), "ogger") && !strings.Contains(string(source), ".log.") {
			return err
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, source, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains(fieldMethods, method.Sel.Name) || namesPackage(method.X, "attribute", "fmt", "flag") {
				return true
			}
			calls[set.Position(call.Lparen).String()] = call
			return true
		})
		return nil
	})
	require.NoError(t, err)
	return calls
}

func namesPackage(x ast.Expr, names ...string) bool {
	ident, ok := x.(*ast.Ident)
	return ok && slices.Contains(names, ident.Name)
}
