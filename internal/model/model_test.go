package model

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var moreFaults = flag.Int("faults", 0, "how many more faults the worlds of TestNothingIsLostNorOvertaken have; one more is ten times the states")

// The worlds. Rows 1, 2 and 3 are of the keys a, a and b.
var (
	// reading has all that transactions can do to a relay that reads one row at a time, and nothing fails.
	reading = config{
		txs: [][]int{{0}, {1}, {2}}, keys: [maxRows]int{0, 0, 1}, alone: true, instant: true, window: 1, waiting: 1, perKey: 1,
	}
	// rereading has two transactions, one of two keys; a read fails, or a transaction is rolled back.
	rereading = config{
		txs: [][]int{{0}, {1, 2}}, keys: [maxRows]int{0, 0, 1}, alone: true, instant: true, window: 1, waiting: 1, perKey: 1,
		faults: 1, allowed: []uint8{actReadFails, actPassFails, actAbort},
	}
	// takeover has two relays that fail in every way.
	takeover = config{
		txs: [][]int{{0}, {1}}, keys: [maxRows]int{0, 0}, committed: 2, window: 2, waiting: 2, perKey: 2,
		faults: 2, allowed: []uint8{actExpire, actCrash, actOwnClock, actHandOver, actConnectionLost, actChannelClosed, actSettleDoubt, actNack},
	}
	// lateTakeover adds a transaction that commits meanwhile.
	lateTakeover = config{
		txs: [][]int{{0}, {1}, {2}}, keys: [maxRows]int{0, 0, 1}, committed: 2, window: 2, waiting: 2, perKey: 2,
		faults: 1, allowed: takeover.allowed,
	}
	// parked has a row that is bad now and then, or for ever, and an operator.
	parked = config{
		txs: [][]int{{0}, {1}}, keys: [maxRows]int{0, 0}, committed: 2, bad: 0b1, bads: 2, window: 2, waiting: 2, perKey: 1,
		faults: 2, allowed: []uint8{actExpire, actCrash, actOwnClock, actHandOver, actConnectionLost, actErrandDoubt},
	}
)

// only is the world with these faults alone.
func (c config) only(faults ...uint8) config {
	c.allowed, c.faults = faults, uint8(len(faults))
	return c
}

// but is the world where one requirement is not looked at.
func (c config) but(broken string) config {
	c.overlook = broken
	return c
}

func TestNothingIsLostNorOvertaken(t *testing.T) {
	t.Parallel()
	skipped := parked
	skipped.faults--
	for _, w := range []struct {
		name string
		rules
		config
	}{
		{"reading", rules{}, reading},
		{"rereading", rules{}, rereading},
		{"takeover", rules{}, takeover},
		{"takeover, skip", rules{skip: true}, takeover},
		{"late takeover", rules{}, lateTakeover},
		{"parked", rules{}, parked},
		{"parked, skip", rules{skip: true}, skipped},
	} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			w.faults += uint8(*moreFaults)
			if testing.Short() {
				w.faults, w.txs = min(w.faults, 1), w.txs[:2]
			}
			r := newModel(w.rules, w.config).explore()
			require.Empty(t, r.broken, "%s", r)
			t.Log(r)
		})
	}
}

// TestEveryRuleIsNeeded breaks one rule at a time. The first two are the wrong cursors.
func TestEveryRuleIsNeeded(t *testing.T) {
	t.Parallel()
	for _, w := range []struct {
		name string
		rules
		config
		broken string
	}{
		{"a plain cursor overlooks rows", rules{plainCursor: true}, reading.but(brokenOrder), brokenEnd},
		{"a cursor by transaction breaks the order", rules{xidCursor: true}, reading, brokenOrder},
		{"a plain cursor breaks the order too", rules{plainCursor: true}, reading, brokenOrder},
		{"late rows have new numbers too", rules{noNewXids: true}, rereading.only().but(brokenOrder), brokenEnd},
		{"settling names the epoch", rules{settleAnyone: true}, takeover, brokenEpoch},
		{"parking names the epoch", rules{parkAnyone: true}, parked, brokenEpoch},
		{"without it parking breaks the order", rules{parkAnyone: true}, parked.but(brokenEpoch), brokenOrder},
		{"the fence", rules{noFence: true}, takeover, brokenFence},
		{"without it parked rows are overtaken", rules{noFence: true}, parked.but(brokenFence), brokenOrder},
		{"the lease's clock", rules{noClock: true}, takeover, brokenFence},
		{"without it parked rows are overtaken", rules{noClock: true}, parked.but(brokenFence), brokenOrder},
		{"an unknown outcome is no confirm", rules{lostIsSettled: true}, takeover, brokenLoss},
		{"parked rows are loaded first", rules{noLoad: true}, parked, brokenOrder},
		{"one row of a key in flight", rules{manyInFlight: true}, takeover, brokenOrder},
		{"nacked rows are overtaken under skip", rules{skip: true, onlyBadPass: true}, takeover, brokenOrder},
		{"a blocked key's rows are dropped", rules{noDropping: true}, parked, brokenOrder},
		{"a lost answer to parking", rules{parkOnce: true}, parked, brokenOrder},
		{"parking locks the lease", rules{parkNoLock: true}, parked, brokenOrder},
		{"no epoch runs twice", rules{sameEpoch: true}, parked, brokenOrder},
		{"a lost answer to a request", rules{requestDoubt: true}, parked.only(actErrandDoubt), brokenEnd},
		{"the fence is given back", rules{fenceStays: true}, takeover.only(actHandOver, actChannelClosed), brokenEnd},
	} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			r := newModel(w.rules, w.config).explore()
			require.Equal(t, w.broken, r.broken, "the search has to find this: %s", r)
			t.Log(r)
		})
	}
}

// TestSettlesOfAnOldEpochAreHarmless: that settling names its epoch is a second line, for it deletes only what the
// broker has.
func TestSettlesOfAnOldEpochAreHarmless(t *testing.T) {
	t.Parallel()
	r := newModel(rules{settleAnyone: true}, takeover.but(brokenEpoch)).explore()
	require.Empty(t, r.broken, "%s", r)
}

func TestEveryActionNamesItsCode(t *testing.T) {
	t.Parallel()
	known := declarations(t, filepath.Join("..", "..", "relay"))
	for _, a := range actions {
		require.NotEmpty(t, a.text)
		for _, name := range a.code {
			require.Contains(t, known, name, "%s", a.text)
		}
	}
}

// declarations are the functions, methods (as type.method), variables and constants of a package without its tests.
func declarations(t *testing.T, dir string) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := map[string]bool{}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, entry.Name()), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				names[receiver(d)+d.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if v, ok := spec.(*ast.ValueSpec); ok {
						names[v.Names[0].Name] = true
					}
				}
			}
		}
	}
	return names
}

func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	name, _ := typ.(*ast.Ident)
	return name.Name + "."
}
