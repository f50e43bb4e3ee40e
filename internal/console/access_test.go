package console_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/bcrypt"

	"github.com/surefoot-mq/surefoot/internal/access"
	"github.com/surefoot-mq/surefoot/internal/console"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/watchdog"
)

const password = "correct horse battery"

// people are one of each role; their hashes are as cheap as is taken.
var people = sync.OnceValue(func() string { //nolint:gochecknoglobals // made once, for it takes time
	hash, err := bcrypt.GenerateFromPassword([]byte(password), 10)
	if err != nil {
		panic(err)
	}
	return "vic:view:" + string(hash) + "\nolga:operate:" + string(hash) + "\nadam:admin:" + string(hash) + "\n"
})

func usersFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users")
	require.NoError(t, os.WriteFile(path, []byte(people()), 0o600))
	return path
}

// withLogin has people log in by password.
func withLogin(t testing.TB) func(*console.Options) {
	t.Helper()
	path := usersFile(t)
	return func(o *console.Options) { o.Access.UsersFile, o.Access.ReadFile = path, os.ReadFile }
}

// as logs in, and gives requests the session.
func (s *stage) as(name string) func(*http.Request) {
	s.Helper()
	a := s.post("/login", "name", name, "password", password, "next", "/dead")
	require.Equal(s, http.StatusSeeOther, a.status, a.body)
	require.Equal(s, "/dead", a.head.Get("Location"))
	return a.cookies
}

// needed are all routes and who may use them: a new one belongs here, too.
func needed() map[string]access.Role {
	roles := map[string]access.Role{}
	for role, patterns := range map[access.Role][]string{
		access.Anyone: {"GET /static/{name}", "GET /login", "POST /login", "GET /login/oidc", "GET /login/callback", "POST /logout"},
		access.View: {
			"GET /live", "GET /{$}", "GET /queues", "GET /dead", "GET /dead/letters", "GET /dead/letter", "GET /runs", "GET /run", "GET /sagas", "GET /reconcile", "GET /outbox", "GET /message", "GET /audit", "GET /",
		},
		access.Operate: {
			"GET /dead/note", "POST /dead/note", "GET /redrive", "POST /redrive", "POST /run/start", "POST /run/pause", "POST /run/resume", "POST /run/cancel", "POST /run/drop", "POST /sagas/act",
			"POST /outbox/retry", "POST /queues/pause", "POST /queues/resume",
		},
		access.Admin: {"GET /dead/discard", "POST /dead/discard", "POST /dead/reveal", "POST /outbox/discard"},
	} {
		for _, pattern := range patterns {
			roles[pattern] = role
		}
	}
	return roles
}

func TestEveryRouteOfEveryRole(t *testing.T) {
	t.Parallel()
	s := newStage(t, withLogin(t))
	require.Equal(t, needed(), s.served.Routes())
	nobody := func(*http.Request) {}
	sessions := []struct {
		role access.Role
		as   func(*http.Request)
	}{{access.Anyone, nobody}, {access.View, s.as("vic")}, {access.Operate, s.as("olga")}, {access.Admin, s.as("adam")}}
	for pattern, role := range needed() {
		method, path, _ := strings.Cut(pattern, " ")
		path = strings.NewReplacer("{$}", "", "{name}", "console.js").Replace(path)
		if pattern == "GET /" {
			path = "/nope"
		}
		if role == access.Anyone { // those are for nobody
			continue
		}
		for _, session := range sessions {
			var form url.Values
			if method == http.MethodPost {
				form = url.Values{} // which does nothing
			}
			status, location := s.statusOf(s.request(method, path, form, session.as))
			switch {
			case session.role >= role:
				require.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusSeeOther}, status, "%s as %s", pattern, session.role)
			case session.role > access.Anyone:
				require.Equal(t, http.StatusForbidden, status, "%s as %s", pattern, session.role)
			case method == http.MethodGet && path != "/live":
				require.Equal(t, http.StatusSeeOther, status, pattern)
				require.True(t, strings.HasPrefix(location, "/login?next=%2F"), location)
			default:
				require.Equal(t, http.StatusUnauthorized, status, pattern)
			}
		}
	}
	require.Equal(t, http.StatusUnauthorized, s.do(s.request(http.MethodGet, "/dead", nil, func(r *http.Request) { r.Header.Set("Sec-Fetch-Dest", "empty") })).status, "a script is not led to the login")
	require.Contains(t, s.get("/static/console.css").body, ".login")
	require.Empty(t, s.audit())
}

// statusOf does not wait for the end of a stream.
func (s *stage) statusOf(r *http.Request) (status int, location string) {
	s.Helper()
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	require.NoError(s, err)
	require.NoError(s, response.Body.Close())
	return response.StatusCode, response.Header.Get("Location")
}

// What a page offers, whoever sees it may do.
func TestPagesOfferWhatTheRoleMayDo(t *testing.T) {
	t.Parallel()
	s := newStage(t, withLogin(t), func(o *console.Options) { withSagas(t, o) })
	m := letter("m1", "order.paid", "permanent", "bad address")
	s.fill(m)
	s.index(m)
	s.park("stuck", "unpublishable", "too long")
	olga := s.as("olga")
	a := s.do(s.request(http.MethodPost, "/redrive", url.Values{"queue": {work}, "reason": {"try"}}, olga))
	require.Equal(t, http.StatusSeeOther, a.status, a.body)
	plan := a.head.Get("Location")
	for _, who := range []struct {
		as    func(*http.Request)
		role  access.Role
		sees  []string
		never []string
	}{
		{s.as("vic"), access.View, nil, []string{"Redrive…", "Discard…", "Note…", "Drop the plan", "Reveal what is masked", "Give more time", "Try the chosen again", "Discard the chosen", "Pause orders.saga"}},
		{olga, access.Operate, []string{"Redrive…", "Note…", "Drop the plan", "Give more time", "Try the chosen again", "Pause orders.saga"}, []string{"Discard…", "Reveal what is masked", "Discard the chosen"}},
		{s.as("adam"), access.Admin, []string{"Redrive…", "Note…", "Drop the plan", "Give more time", "Try the chosen again", "Pause orders.saga", "Discard…", "Reveal what is masked", "Discard the chosen"}, nil},
	} {
		var pages strings.Builder
		for _, path := range []string{"/", "/queues", "/queues?queue=" + work, "/dead", "/dead/letters?queue=" + work, "/dead/letter?payload=1&id=m1&queue=" + work, "/runs?plans=1", plan, "/sagas", "/outbox", "/outbox?state=stopped", "/message?id=m1", "/audit"} {
			var page answer
			testkit.Eventually(t, patience, path, func() bool {
				page = s.do(s.request(http.MethodGet, path, nil, who.as))
				return page.status == http.StatusOK
			})
			for _, found := range regexp.MustCompile(`(?:form)?action="(/[^"?]*)|href="(/[^"?#]*)`).FindAllStringSubmatch(page.body, -1) {
				pattern := "POST " + found[1]
				if found[2] != "" {
					pattern = "GET " + strings.TrimSuffix(found[2], "/") + map[bool]string{true: "/{$}"}[found[2] == "/"]
				}
				needs, known := needed()[pattern]
				if pattern = "GET " + found[1]; !known { // a filter
					needs, known = needed()[pattern], true
				}
				require.True(t, known, "%s leads to %s", path, pattern)
				require.GreaterOrEqual(t, who.role, needs, "%s offers %q to %s", path, found[0], who.role)
			}
			pages.WriteString(page.body)
		}
		all := pages.String()
		for _, text := range who.sees {
			require.Contains(t, all, text, who.role)
		}
		for _, text := range who.never {
			require.NotContains(t, all, text, who.role)
		}
		require.Contains(t, all, "Log out")
	}
}

func withSagas(t testing.TB, o *console.Options) {
	t.Helper()
	table := o.Schema + ".sagas"
	_, err := o.Pool.Exec(t.Context(), `CREATE TABLE `+table+` (id text PRIMARY KEY, status text NOT NULL, since timestamptz NOT NULL)`)
	require.NoError(t, err)
	_, err = o.Pool.Exec(t.Context(), `INSERT INTO `+table+` VALUES ('o-1', 'PAYING', now() - interval '1 h')`)
	require.NoError(t, err)
	o.Sagas, err = watchdog.New(watchdog.Options{Pool: o.Pool, Schema: o.Schema, Rules: []watchdog.Rule{{
		Name: "paying", Table: table, Key: "id", Status: "status", Stuck: []string{"PAYING"}, Clock: "since", Limit: 10 * time.Minute, NewStatus: "GIVEN_UP", Reason: "TOO_LONG", EventType: "order.cancelled",
	}}})
	require.NoError(t, err)
}

func TestThePersonStandsInTheAudit(t *testing.T) {
	t.Parallel()
	s := newStage(t, withLogin(t))
	olga := s.as("olga")
	a := s.do(s.request(http.MethodPost, "/queues/pause", url.Values{"queue": {work}, "reason": {"provider is down"}}, olga))
	require.Equal(t, http.StatusSeeOther, a.status, a.body)
	require.Contains(t, s.audit()[0], "|olga (console, 127.0.0.1)|provider is down")
	require.Equal(t, http.StatusSeeOther, s.do(s.request(http.MethodPost, "/logout", url.Values{}, olga)).status)
	status, _ := s.statusOf(s.request(http.MethodPost, "/queues/resume", url.Values{"queue": {work}, "reason": {"r"}}, olga))
	require.Equal(t, http.StatusUnauthorized, status)
	require.Equal(t, http.StatusForbidden, s.do(s.request(http.MethodPost, "/login", url.Values{"name": {"olga"}}, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") })).status)
}

func TestLoginsAreLimited(t *testing.T) {
	t.Parallel()
	s := newStage(t, withLogin(t))
	var a answer
	for range 60 { // in this time some tries come back
		if a = s.post("/login", "name", "adam", "password", "wrong"); a.status == http.StatusTooManyRequests {
			break
		}
	}
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.NotEmpty(t, a.head.Get("Retry-After"))
	require.Contains(t, a.body, "too many tries")
	require.NotContains(t, a.body, `"/queues"`, "nothing of the pages")
	require.NotContains(t, a.body, "v1.2.3")
}

func TestRevealing(t *testing.T) {
	t.Parallel()
	s := newStage(t, withLogin(t))
	plain := letter("m2", "order.paid", "permanent", "bad")
	plain.Body = []byte("card 4111, name Ann")
	first := letter("m1", "order.paid", "permanent", "bad address")
	first.Headers["X-Card-Number"] = "4111111111111111"
	s.fill(first, plain)
	adam, olga := s.as("adam"), s.as("olga")
	get := func(path string, as func(*http.Request)) answer {
		return s.do(s.request(http.MethodGet, path, nil, as))
	}
	path := "/dead/letter?payload=1&queue=" + work + "&id="
	for _, as := range []func(*http.Request){adam, olga} {
		body := get(path+"m1", as).body
		require.Contains(t, body, "orderId")
		require.NotContains(t, body, "body-of-m1")
		require.NotContains(t, body, "4111")
		body = get(path+"m2", as).body
		require.Contains(t, body, "is masked whole")
		require.NotContains(t, body, "name Ann")
	}
	form, reveal := url.Values{"reason": {"the customer asks, OPS-8"}}, "/dead/reveal?queue="+work+"&id=m1"
	require.Equal(t, http.StatusForbidden, s.do(s.request(http.MethodPost, reveal, form, olga)).status)
	a := s.do(s.request(http.MethodPost, reveal, url.Values{}, adam))
	require.Equal(t, http.StatusBadRequest, a.status, "without a reason")
	require.NotContains(t, a.body, "body-of-m1")
	require.Empty(t, s.audit())
	require.NotContains(t, get(reveal+"&"+form.Encode(), adam).body, "body-of-m1", "a GET reveals nothing")

	s.exec(`ALTER TABLE ` + s.db.Schema + `.audit RENAME TO away`)
	a = s.do(s.request(http.MethodPost, reveal, form, adam))
	require.Equal(t, http.StatusServiceUnavailable, a.status)
	require.NotContains(t, a.body, "body-of-m1", "what is not audited is not shown")
	s.exec(`ALTER TABLE ` + s.db.Schema + `.away RENAME TO audit`)

	a = s.do(s.request(http.MethodPost, reveal, form, adam))
	require.Equal(t, http.StatusOK, a.status, a.body)
	require.Contains(t, a.body, "body-of-m1")
	require.Contains(t, a.body, "4111111111111111")
	require.NotContains(t, a.body, "Reveal what is masked")
	require.Contains(t, s.audit(), "dlq reveal|revealed 1 message|adam (console, 127.0.0.1)|the customer asks, OPS-8")
	require.Contains(t, get("/audit?message=m1", olga).body, "dlq reveal")
	require.NotContains(t, get(path+"m2", adam).body, "name Ann", "that one message only")
	require.NotContains(t, get(path+"m1", adam).body, "body-of-m1", "and that one time")

	// What is masked is not found out by asking for it.
	for _, where := range []string{"secret=body-of-m1", "secret!=x", "a.card.number=1", "Secret=1", "0=1", "0.a=1", " 0=1", "0!=1"} {
		for _, page := range []string{"/dead/letters?queue=" + work + "&where=", "/dead/letters?queue=orders.saga.dlq&where="} {
			require.Contains(t, get(page+url.QueryEscape(where), olga).body, "is masked", where)
		}
		require.Equal(t, http.StatusForbidden, s.do(s.request(http.MethodPost, "/redrive", url.Values{"queue": {work}, "reason": {"r"}, "where": {where}}, olga)).status, where)
	}
	require.Contains(t, get("/dead/letters?queue="+work+"&where=orderId%3Dm1", olga).body, "1 message, the oldest first")
	require.Contains(t, get("/dead/letters?queue="+work+"&where=secret%3Dbody-of-m1", adam).body, "1 message, the oldest first")
}

// Tables, what is packed into text, and answers that are cut off have names, too.
func TestMasksReachIntoHeadersAndAnswers(t *testing.T) {
	t.Parallel()
	s := newStage(t, withLogin(t))
	m := letter("m1", "order.paid", "permanent", "bad address")
	m.Headers["meta"] = amqp.Table{"a": "shown-1", "secret": "hidden-1", "list": []any{amqp.Table{"card": "hidden-2"}}}
	m.Headers["packed"] = `{"a":"shown-2","secret":"hidden-3"}`
	m.Headers["form"] = []byte("a=1&secret=hidden-4")
	message.Failure{
		Class: "permanent", Type: "http 422", Message: "refused", LastFailedAt: time.Now(),
		Stack: `{"you": "sent", "secret": "hidden-5", "and": "` + strings.Repeat("x", message.MaxErrorStack),
	}.Write(m.Headers, 3)
	s.fill(m)
	page := s.do(s.request(http.MethodGet, "/dead/letter?queue="+work+"&id=m1&payload=1", nil, s.as("vic"))).body
	require.Contains(t, page, "Answer of the endpoint")
	require.Contains(t, page, "shown-1")
	require.Contains(t, page, "shown-2")
	require.NotContains(t, page, "hidden-")
	page = s.do(s.request(http.MethodPost, "/dead/reveal?queue="+work+"&id=m1", url.Values{"reason": {"r"}}, s.as("adam"))).body
	for _, n := range []string{"1", "2", "3", "4", "5"} {
		require.Contains(t, page, "hidden-"+n)
	}
}

// Only a change, and only once, makes a page say that it was made.
func TestNobodyElseMakesAPageSayThatItIsDone(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*console.Options){"with a login": withLogin(t), "without": func(*console.Options) {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, change)
			as := func(string) func(*http.Request) { return func(*http.Request) {} }
			if name == "with a login" {
				as = s.as
			}
			olga := as("olga")
			get := func(path string, change ...func(*http.Request)) string {
				return s.do(s.request(http.MethodGet, path, nil, change...)).body
			}
			page := "/queues?queue=" + work
			for _, forged := range []string{page + "&done=queue-paused", "/runs?done=dropped", "/?done=started"} {
				require.NotContains(t, get(forged, olga), `class="notice ok"`)
			}
			a := s.do(s.request(http.MethodPost, "/queues/pause", url.Values{"queue": {work}, "reason": {"r"}}, olga))
			require.Equal(t, page, a.head.Get("Location"))
			require.NotContains(t, get("/queues", olga, a.cookies), "The queue is paused.", "another page")
			script := s.do(s.request(http.MethodGet, page, nil, olga, a.cookies, func(r *http.Request) { r.Header.Set("Sec-Fetch-Dest", "empty") }))
			require.NotContains(t, script.body, "The queue is paused.")
			require.Empty(t, script.head.Get("Set-Cookie"), "another tab leaves it alone")
			if name == "with a login" {
				require.NotContains(t, get(page, as("adam"), a.cookies), "The queue is paused.", "another session")
			}
			told := s.do(s.request(http.MethodGet, page, nil, olga, a.cookies))
			require.Contains(t, told.body, "The queue is paused.")
			require.Contains(t, told.head.Get("Set-Cookie"), "surefoot-done=; Path=/; Max-Age=0", "once")
			other := func(r *http.Request) {
				r.AddCookie(&http.Cookie{Name: "surefoot-done", Value: "started.9999999999.AAAA"})
			}
			require.NotContains(t, get(page, olga, other), `class="notice ok"`)
		})
	}
}

func TestPlansOfAnotherVhostStay(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.fill(letter("m1", "order.paid", "permanent", "bad"))
	plan := s.follow("/redrive", "queue", work, "reason", "try")
	other := newStage(t, func(o *console.Options) { o.Pool, o.Schema = s.db.Pool, s.db.Schema })
	require.Equal(t, http.StatusNotFound, other.post("/run/drop", "id", runIn(s, plan)).status)
	require.Contains(t, s.page(plan), "Plan to redrive")
}

// Of several that could not be done each is named.
func TestAllThatWasNotDoneIsNamed(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(o *console.Options) { withSagas(t, o) })
	a := s.post("/sagas/act", "rule", "paying", "key", "o-1", "key", "gone-1", "key", "gone-2", "do", "cancel", "reason", "customer called")
	require.Equal(t, http.StatusConflict, a.status, a.body)
	for _, text := range []string{"2 of 3 were not done; the others were", "gone-1: ", "gone-2: "} {
		require.Contains(t, a.body, text)
	}
	require.NotContains(t, a.body, "o-1:")
}

func TestTLS(t *testing.T) {
	t.Parallel()
	authority := testkit.NewAuthority(t)
	pair, mine := authority.Issue(t, testkit.Certificate{}), authority.Issue(t, testkit.Certificate{Name: "browser"})
	s := newStage(t, withLogin(t), func(o *console.Options) {
		o.Files, o.Listen, o.Access.PublicURL = tlsfiles.Files{Cert: pair.Cert, Key: pair.Key, CA: authority.File}, "0.0.0.0:0", "https://ops.example.org"
	})
	_, port, _ := strings.Cut(strings.TrimPrefix(s.base, "http://[::]"), ":")
	trusted := x509.NewCertPool()
	pem, err := os.ReadFile(authority.File)
	require.NoError(t, err)
	require.True(t, trusted.AppendCertsFromPEM(pem))
	ask := func(host string, certificates ...tls.Certificate) (*http.Response, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://127.0.0.1:"+port+"/login", strings.NewReader(url.Values{"name": {"adam"}, "password": {password}}.Encode()))
		require.NoError(t, err)
		r.Host = host
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: trusted, Certificates: certificates, MinVersion: tls.VersionTLS12}}
		return transport.RoundTrip(r)
	}
	own, err := tls.LoadX509KeyPair(mine.Cert, mine.Key)
	require.NoError(t, err)
	response, err := ask("ops.example.org", own)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusSeeOther, response.StatusCode)
	require.Contains(t, response.Header.Get("Set-Cookie"), "__Host-surefoot-session=")
	require.Contains(t, response.Header.Get("Set-Cookie"), "Secure")
	for _, other := range []string{"127.0.0.1", "evil.example", "localhost"} {
		response, err = ask(other, own)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusMisdirectedRequest, response.StatusCode, other)
	}
	response, err = ask("ops.example.org")
	if err == nil {
		_ = response.Body.Close()
	}
	require.Error(t, err, "without a certificate of its own")
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1:"+port+"/", http.NoBody)
	require.NoError(t, err)
	response, err = (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusBadRequest, response.StatusCode, "in the clear nothing is said")
}

// An open page hears nothing more once its person is gone, and that it is to ask why.
func TestStreamsEndWithTheirSession(t *testing.T) {
	t.Parallel()
	s := newStage(t, withLogin(t))
	vic := s.as("vic")
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(s.request(http.MethodGet, "/live", nil, vic)) //nolint:bodyclose // it is, below
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	read := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(response.Body)
		read <- string(all)
	}()
	require.Equal(t, http.StatusSeeOther, s.do(s.request(http.MethodPost, "/logout", url.Values{}, vic)).status)
	select {
	case all := <-read:
		require.True(t, strings.HasSuffix(all, "event: tick\ndata: new\n\n"), all)
	case <-time.After(patience):
		require.Fail(t, "the stream goes on")
	}
}

// Whoever waits for a provider that does not answer keeps nobody else from the pages.
func TestAProviderThatHangsHoldsUpLoginsAlone(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	provider := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-over }))
	t.Cleanup(provider.Close)
	s := newStage(t, func(o *console.Options) {
		o.Access.OIDC = access.OIDC{Issuer: provider.URL, ClientID: "surefoot", Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
		o.Access.Mapping.View, o.Access.Proxies = []string{"dev"}, []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	})
	full := make(chan int, console.MaxRequests+1)
	for n := range console.MaxRequests + 1 {
		r := s.request(http.MethodGet, "/login/oidc", nil, func(r *http.Request) { r.Header.Set("X-Forwarded-For", "192.0.2."+strconv.Itoa(n)) })
		go func() {
			response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
			if err != nil {
				full <- 0
				return
			}
			_ = response.Body.Close()
			full <- response.StatusCode
		}()
	}
	require.Equal(t, http.StatusServiceUnavailable, <-full)
	status, _ := s.statusOf(s.request(http.MethodGet, "/", nil))
	close(over)
	require.Equal(t, http.StatusSeeOther, status)
	for range console.MaxRequests {
		<-full
	}
}

// Forms of logins that do not come to their end keep nobody from logging in.
func TestSlowLoginsHoldUpNobody(t *testing.T) {
	t.Parallel()
	s := newStage(t, withLogin(t))
	for range console.MaxLogins {
		conn, err := net.Dial("tcp", strings.TrimPrefix(s.base, "http://"))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, "POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 99\r\nExpect: 100-continue\r\n\r\n")
		require.NoError(t, err)
		line, err := bufio.NewReader(conn).ReadString('\n') // the server asks for the body: it waits for it from now on
		require.NoError(t, err)
		require.Contains(t, line, "100 Continue")
	}
	s.as("vic")
}

// Without TLS of its own it is reached through the proxy alone, also on all addresses, and nobody else gets as far as to log in.
func TestOnlyTheProxyReachesIt(t *testing.T) {
	t.Parallel()
	for proxy, want := range map[string]int{"127.0.0.1/32": http.StatusOK, "10.0.0.7/32": http.StatusForbidden} {
		var logged bytes.Buffer
		s := newStage(t, withLogin(t), func(o *console.Options) {
			o.Listen, o.Access.PublicURL, o.Access.Proxies = "0.0.0.0:0", "https://ops.example.org", []netip.Prefix{netip.MustParsePrefix(proxy)}
			o.Logger = zerolog.New(zerolog.SyncWriter(&logged))
		})
		_, port, _ := strings.Cut(strings.TrimPrefix(s.base, "http://[::]"), ":")
		s.base = "http://127.0.0.1:" + port
		public := func(r *http.Request) { r.Host = "ops.example.org" }
		require.Equal(t, want, s.do(s.request(http.MethodGet, "/login", nil, public)).status, proxy)
		s.stop()
		require.Equal(t, want == http.StatusForbidden, strings.Contains(logged.String(), "trusted proxy"), proxy)
	}
}

// The way to the provider begins and ends at this console; what happens there package access proves.
func TestLoginByAProviderBegins(t *testing.T) {
	t.Parallel()
	var provider *httptest.Server
	provider = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": provider.URL, "authorization_endpoint": provider.URL + "/authorize", "token_endpoint": provider.URL + "/token", "jwks_uri": provider.URL + "/keys"})
	}))
	t.Cleanup(provider.Close)
	s := newStage(t, func(o *console.Options) {
		o.Access.OIDC = access.OIDC{Issuer: provider.URL, ClientID: "surefoot", Client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}}
		o.Access.Mapping.View = []string{"dev"}
	})
	a := s.get("/dead?queue=" + work)
	require.Equal(t, http.StatusSeeOther, a.status)
	begin := html.UnescapeString(regexp.MustCompile(`href="(/login/oidc[^"]*)"`).FindStringSubmatch(s.page(a.head.Get("Location")))[1])
	a = s.get(begin)
	require.Equal(t, http.StatusSeeOther, a.status, a.body)
	to, err := url.Parse(a.head.Get("Location"))
	require.NoError(t, err)
	q := to.Query()
	require.Equal(t, []string{"code", "surefoot", "S256", s.base + "/login/callback"}, []string{q.Get("response_type"), q.Get("client_id"), q.Get("code_challenge_method"), q.Get("redirect_uri")})
	require.NotEmpty(t, q.Get("state"))
	require.NotEmpty(t, q.Get("nonce"))
	back := s.do(s.request(http.MethodGet, "/login/callback?code=x&state=other", nil, a.cookies))
	require.Equal(t, http.StatusBadRequest, back.status)
	require.Contains(t, back.body, "was not begun here")
}

func TestBrowserLogsIn(t *testing.T) {
	t.Parallel()
	s := newStage(t, calmly, withLogin(t))
	m := letter("m1", "order.paid", "permanent", "bad address")
	s.fill(m)
	s.index(m)
	b := s.openBrowser(390)
	b.open("/dead/letter?payload=1&id=m1&queue=" + work)
	b.see("h1", "Log in")
	b.fits("/login")
	b.fill("#name", "adam")
	b.fill("#password", "wrong password")
	b.click("main button.primary")
	b.see(".notice.bad", "nobody of this name")
	require.Equal(t, "adam", evaluate[string](b, `document.getElementById("name").value`))
	b.fill("#password", password)
	b.click("main button.primary")
	b.see("h1", "m1")
	b.see(".body", "orderId", "•••")
	b.fits("/dead/letter")
	b.fill("#reason", "OPS-8")
	b.click("#reveal")
	b.see(".body", "body-of-m1")
	require.Equal(t, "undefined", evaluate[string](b, "typeof document.cookie.session"))
	require.Empty(t, evaluate[string](b, "document.cookie"), "scripts do not see it")
	b.open("/")
	b.see("#pulse-text", "Live")
	b.resize(1280)
	b.fits("/")
	b.click(".me button")
	b.see("h1", "Log in")
	b.open("/audit")
	b.see("h1", "Log in")
}
