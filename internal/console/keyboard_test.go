package console_test

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// focused is what has the focus, in a word, and whether one sees it.
func (b *browser) focused() (what string) {
	b.Helper()
	return evaluate[string](b, `(() => { const e = document.activeElement; return e === document.body ? "" : (e.id ? "#" + e.id : (e.getAttribute("aria-label") || e.innerText || e.name || e.tagName).trim()) })()`)
}

func (b *browser) key(keys string) {
	b.Helper()
	b.do(chromedp.KeyEvent(keys))
}

// tabTo walks by the tab key until something has the focus.
func (b *browser) tabTo(what string) {
	b.Helper()
	var seen []string
	for range 80 {
		b.key(kb.Tab)
		got := b.focused()
		if got == "" { // between the end and the beginning
			continue
		}
		require.True(b, evaluate[bool](b, `(() => { const s = getComputedStyle(document.activeElement); return s.outlineStyle !== "none" && parseFloat(s.outlineWidth) >= 2 })()`), "the focus on %q cannot be seen", got)
		if got == what {
			return
		}
		seen = append(seen, got)
	}
	require.Fail(b, "not to be reached by keyboard", "%q, among %q", what, seen)
}

// The way from the overview to a redrive needs no mouse, and begins with a link past the navigation.
func TestBrowserByKeyboard(t *testing.T) {
	t.Parallel()
	s := newStage(t, calmly)
	s.consume(func(string) error { return nil })
	m := letter("m1", "order.paid", "permanent", "bad address")
	s.fill(m)
	s.index(m)
	s.see("/dead", "1 message with 1 cause")
	b := s.openBrowser(1280)
	b.open("/")
	b.see("#calls-h", "1 thing")
	b.key(kb.Tab)
	require.Equal(t, "Skip to content", b.focused())
	b.key(kb.Enter)
	require.Equal(t, "#main", b.focused())
	b.tabTo("See why")
	b.key(kb.Enter)
	b.see("h1", "Dead letters")
	b.tabTo("Redrive…")
	b.key(kb.Enter)
	b.see("h1", "Redrive dead letters")
	b.tabTo("#reason")
	b.key("fixed in v43")
	b.key(kb.Enter)
	b.see("h1", "Plan to redrive orders.saga")
	b.tabTo("#start")
	b.key(kb.Enter)
	b.see(".lead", "done")
	b.tabTo("#pause")
	b.key(" ")
	b.see("#pulse-text", "Paused")

	for _, path := range []string{"/", "/queues", "/queues?queue=" + work, "/dead", "/dead/letters?queue=" + work, "/redrive", "/runs", "/audit"} {
		b.open(path)
		require.Empty(t, evaluate[string](b, unnamed), "%s: every control has a name", path)
		require.Equal(t, 1, evaluate[int](b, `document.querySelectorAll("h1").length`), path)
		require.Zero(t, evaluate[int](b, `[...document.querySelectorAll("[id]")].filter((e, i, all) => all.findIndex((o) => o.id === e.id) !== i).length`), "%s: an id is there twice", path)
		require.Zero(t, evaluate[int](b, `[...document.querySelectorAll("table")].filter((t) => !t.querySelector("th[scope=col]")).length`), "%s: a table has no heads", path)
	}
}

// unnamed lists controls that have no name for whoever does not see them.
const unnamed = `[...document.querySelectorAll("a, button, input:not([type=hidden]), select, textarea, [role=img], progress")]
	.filter((e) => !(e.getAttribute("aria-label") || (e.labels && e.labels.length) || (e.innerText || "").trim() || e.textContent.trim()))
	.map((e) => e.outerHTML).join("\n")`
