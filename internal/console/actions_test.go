package console_test

import (
	"context"
	"errors"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/audit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// post sends a form as a browser does from a page of the console.
func (s *stage) post(path string, pairs ...string) answer {
	s.Helper()
	form := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		form.Add(pairs[i], pairs[i+1])
	}
	return s.do(s.request(http.MethodPost, path, form))
}

// follow posts a form and returns the address that it leads to.
func (s *stage) follow(path string, pairs ...string) string {
	s.Helper()
	a := s.post(path, pairs...)
	require.Equal(s, http.StatusSeeOther, a.status, "%s: %s", path, a.body)
	return a.head.Get("Location")
}

func (s *stage) audit() (list []string) {
	s.Helper()
	items, err := audit.List(context.WithoutCancel(s.Context()), s.db.Pool, s.db.Schema, audit.Filter{Operations: true, Limit: 100})
	require.NoError(s, err)
	for _, i := range items {
		list = append(list, strings.Join([]string{i.Action, i.Outcome, i.Who, i.Reason}, "|"))
	}
	return list
}

// linked is where a link of a page leads to.
func (s *stage) linked(page, text string) string {
	s.Helper()
	found := regexp.MustCompile(`href="([^"]+)"[^>]*>` + regexp.QuoteMeta(text)).FindStringSubmatch(page)
	require.NotNil(s, found, "no link %q", text)
	return html.UnescapeString(found[1])
}

func runIn(s *stage, address string) string {
	s.Helper()
	u, err := url.Parse(address)
	require.NoError(s, err)
	return u.Query().Get("id")
}

// The same as on the command line: a plan that moves nothing, exactly that carried out, and who and why in the audit.
func TestRedriveFromPlanToDone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	var mended atomic.Bool
	s.consume(func(id string) error {
		if strings.HasPrefix(id, "p") && !mended.Load() {
			return errors.New("currency CHF is not enabled")
		}
		return nil
	})
	s.send(names("p", 8)...)
	s.see("/dead", "8 messages with 1 cause")

	a := s.post("/redrive", "queue", work, "ramp", "1,2", "settle", "20s", "max-failures", "0")
	require.Equal(t, http.StatusBadRequest, a.status)
	require.Contains(t, a.body, "give a reason")
	require.Contains(t, a.body, `value="1,2"`, "what was filled in stays")
	for field, wrong := range map[string]string{"ramp": "1,x", "settle": "soon", "max": "-1", "rate": "fast", "max-failures": "many", "since": "yesterday", "where": "nonsense"} {
		a := s.post("/redrive", "queue", work, "reason", "try", field, wrong)
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", field, a.body)
	}

	plan := s.follow("/redrive", "queue", work, "ramp", "1,2", "settle", "20s", "max-failures", "0", "reason", "CHF is enabled since 14:02")
	id := runIn(s, plan)
	page := s.page(plan)
	require.Regexp(t, `id="would">8<`, page)
	require.Contains(t, page, "Nothing has moved yet.")
	require.Contains(t, page, "CHF is enabled since 14:02")
	s.see("/queues", `>8</a>`)
	require.Empty(t, s.audit(), "a plan does nothing")

	mended.Store(true)
	s.follow("/run/start", "id", id)
	s.see("/run?id="+id, `id="processed">8<`, "done", "Canary", "settled")
	require.Equal(t, http.StatusConflict, s.post("/run/start", "id", id).status, "it was started already")
	entries := s.audit()
	require.Contains(t, entries, "dlq redrive|started|ann@test (console, 127.0.0.1)|CHF is enabled since 14:02")
	require.Contains(t, s.page("/audit?operation="+id), "CHF is enabled since 14:02")
	require.Contains(t, s.page("/runs"), id)
}

// What comes back with the same failure stops the run, and the page says so until somebody decides.
func TestARedriveThatFailsAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.consume(func(string) error { return errors.New("currency CHF is not enabled") })
	s.send(names("p", 5)...)
	s.see("/dead", "5 messages with 1 cause")
	id := runIn(s, s.follow("/redrive", "queue", work, "ramp", "1,2", "max-failures", "0", "reason", "try"))
	s.follow("/run/start", "id", id)
	s.see("/run?id="+id, "stopped", `id="failed">1<`, "the same failure again", "Go on")
	s.see("/", "The redrive of orders.saga stopped")
	require.Equal(t, http.StatusBadRequest, s.post("/run/cancel", "id", id).status, "without a reason")
	s.follow("/run/cancel", "id", id, "reason", "the fix is not out")
	s.see("/run?id="+id, "cancelled")
	require.Contains(t, s.audit(), "dlq runs cancel|cancelled|ann@test (console, 127.0.0.1)|the fix is not out")
	require.Equal(t, http.StatusConflict, s.post("/run/pause", "id", id, "reason", "r").status)
	require.Equal(t, http.StatusNotFound, s.post("/run/pause", "id", "0192f000-0000-7000-8000-000000000000", "reason", "r").status)
	require.Equal(t, http.StatusBadRequest, s.post("/run/pause", "id", "x", "reason", "r").status)
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.consume(func(string) error { return nil })
	letters := names("m", 40)
	for _, id := range letters {
		s.fill(letter(id, "order.paid", "transient", "503"))
	}
	id := runIn(s, s.follow("/redrive", "queue", work, "rate", "5/s", "reason", "slowly"))
	s.follow("/run/start", "id", id)
	s.see("/run?id="+id, "running", "Pause")
	s.follow("/run/pause", "id", id, "reason", "somebody asks")
	s.see("/run?id="+id, "paused", "somebody asks")
	s.follow("/run/resume", "id", id)
	s.see("/run?id="+id, "running")
	s.stop()
	s.serve()
	s.see("/run?id="+id, "running") // another process may go on with it
	plan := s.follow("/redrive", "queue", work, "reason", "all of it")
	require.Contains(t, s.page(plan), "belong to another redrive")
	require.Contains(t, s.page(plan), `<a href="/run?id=`+id+`">another redrive</a>`)
	require.Contains(t, s.page("/dead/discard?queue="+work), `<a href="/run?id=`+id+`">another redrive</a>`)
	s.follow("/run/drop", "id", runIn(s, plan))
	require.Equal(t, http.StatusNotFound, s.get(plan).status)
	s.follow("/run/cancel", "id", id, "reason", "enough")
}

// Pages of somebody else cannot make a browser change anything.
func TestChangesComeFromOwnPages(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	form := url.Values{"queue": {work}, "reason": {"evil"}}
	for name, change := range map[string]func(*http.Request){
		"cross site": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
		"same site":  func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "same-site") },
		"old browser": func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", "https://evil.example")
		},
		"file or sandbox": func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			r.Header.Set("Origin", "null")
		},
	} {
		for _, path := range []string{"/queues/pause", "/redrive", "/run/start", "/dead/discard?queue=" + work, "/dead/note"} {
			require.Equal(t, http.StatusForbidden, s.do(s.request(http.MethodPost, path, form, change)).status, "%s: %s", name, path)
		}
	}
	require.Empty(t, s.audit())
	for _, path := range []string{"/queues/pause", "/run/start", "/run/pause", "/dead/note"} {
		require.NotEqual(t, http.StatusOK, s.get(path+"?queue="+work+"&reason=r").status, "a GET changes nothing")
	}
	big := s.post("/dead/note", "group", "1", "text", strings.Repeat("x", 100<<10))
	require.Equal(t, http.StatusRequestEntityTooLarge, big.status)
}

func TestQueuesAreHeldAndGroupsNoted(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.consume(func(string) error { return errors.New("bad address") })
	s.send("m1")
	group := regexp.MustCompile(`group=(\d+)`).FindStringSubmatch(s.see("/dead", "1 message with 1 cause"))[1]
	s.follow("/dead/note", "group", group, "text", "OPS-7: <b>known</b>, ask Ann")
	require.Contains(t, s.page("/dead"), "OPS-7: &lt;b&gt;known&lt;/b&gt;, ask Ann")
	require.Equal(t, http.StatusBadRequest, s.post("/dead/note", "group", group, "text", "a\x1b[2Jb").status)
	s.follow("/dead/note", "group", group, "do", "remove")
	require.NotContains(t, s.page("/dead"), "OPS-7")

	require.Equal(t, http.StatusBadRequest, s.post("/queues/pause", "queue", work).status)
	require.Equal(t, http.StatusBadRequest, s.post("/queues/pause", "queue", "nope", "reason", "r").status)
	s.follow("/queues/pause", "queue", work, "reason", "provider is down")
	s.see("/queues?queue="+work, "paused", "provider is down", "Resume orders.saga")
	s.see("/", "orders.saga is paused")
	s.follow("/queues/resume", "queue", work, "reason", "provider is back")
	testkit.Eventually(t, patience, "resumed", func() bool { return !strings.Contains(s.page("/"), "orders.saga is paused") })
}

func TestDiscardIsWhatWasSeen(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.fill(letter("m1", "order.paid", "permanent", "bad"), letter("m2", "order.paid", "permanent", "bad"), letter("m3", "order.sent", "permanent", "bad"))
	path := s.linked(s.page("/dead/letters?queue="+work+"&type=order.paid"), "Discard…")
	require.Regexp(t, `id="would">2<`, s.page(path))
	require.Contains(t, s.page(s.linked(s.page("/dead/letters?queue="+work+"&type=order.paid"), "Redrive these…")), `name="type" value="order.paid"`)
	path = html.UnescapeString(regexp.MustCompile(`<form method="post" action="([^"]+)"`).FindStringSubmatch(s.page(path))[1])
	s.fill(letter("m4", "order.paid", "permanent", "bad"))
	a := s.post(path, "count", "2", "reason", "test data")
	require.Equal(t, http.StatusConflict, a.status, a.body)
	require.Contains(t, a.body, "nothing was discarded")
	require.Equal(t, http.StatusBadRequest, s.post(path, "count", "3").status, "without a reason")
	require.Contains(t, s.follow(path, "count", "3", "reason", "test data"), "/dead/letters")
	left := s.page("/dead/letters?queue=" + work)
	require.Contains(t, left, "m3")
	require.NotContains(t, left, "m1")
	require.Contains(t, s.audit()[0], "ann@test (console, 127.0.0.1)|test data")
}
