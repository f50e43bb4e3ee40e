package console_test

import (
	"bufio"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/console"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
)

func TestOnlyLoopbackWithoutALogin(t *testing.T) {
	t.Parallel()
	users, pair, proxies := usersFile(t), testkit.NewAuthority(t).Issue(t, testkit.Certificate{Hosts: []string{"localhost"}}), []netip.Prefix{netip.MustParsePrefix("10.0.0.7/32")}
	made := func(listen string, change func(*console.Options)) error {
		o := console.Options{Listen: listen, Pool: &pgxpool.Pool{}, AMQPURL: "amqp://localhost"}
		o.Access.ReadFile = os.ReadFile
		change(&o)
		_, err := console.New(o)
		return err
	}
	for _, fine := range []string{"127.0.0.1:9465", "127.9.9.9:0", "[::1]:9465", "localhost:9465"} {
		require.NoError(t, made(fine, func(*console.Options) {}), fine)
	}
	for _, wrong := range []string{":9465", "0.0.0.0:9465", "[::]:9465", "192.168.1.7:9465", "10.0.0.1:80", "example.org:9465", "localhost.example.org:9465", "[fe80::1%eth0]:9465", "[::ffff:10.0.0.1]:1"} {
		err := made(wrong, func(*console.Options) {})
		require.ErrorIs(t, err, console.ErrListen, wrong)
		require.ErrorContains(t, err, "there is no login", wrong)
		require.ErrorContains(t, made(wrong, func(o *console.Options) { o.Access.UsersFile = users }), "in the clear")
		require.ErrorContains(t, made(wrong, func(o *console.Options) { o.Access.UsersFile, o.Access.Proxies = users, proxies }), "public_url")
		require.NoError(t, made(wrong, func(o *console.Options) {
			o.Access.UsersFile, o.Access.PublicURL, o.Files = users, "https://ops.example.org", tlsfiles.Files{Cert: pair.Cert, Key: pair.Key}
		}))
		require.NoError(t, made(wrong, func(o *console.Options) {
			o.Access.UsersFile, o.Access.PublicURL, o.Access.Proxies = users, "https://ops.example.org", proxies
		}))
	}
	require.ErrorContains(t, made("127.0.0.1", func(*console.Options) {}), "host:port")
}

// The pages tell what the services know, from the first request on.
func TestPagesTellWhatIsThere(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.consume(func(id string) error {
		return errors.New("no such customer for order " + strings.TrimPrefix(id, "order-"))
	})
	s.send("order-17", "order-23")

	overview := s.see("/", "2 messages died in orders.saga within the last hour", "Dead letters of late", "no such customer")
	require.Contains(t, overview, `<h1>Overview</h1>`)
	s.see("/queues", "working", "team-orders", "stock.reserve", `href="/dead?queue=orders.saga">2</a>`)
	s.see("/queues?queue=orders.saga", "order.*", "docs/runbooks/dlq.md", "#/queues/"+s.broker.Vhost+"/orders.saga")
	groups := s.see("/dead", "2 messages with 1 cause", "no such customer for order", "more: 2 in the last hour, 0 before")
	require.Equal(t, 1, strings.Count(groups, `<li class="group">`), "numbers make no group of their own")

	letters := s.page("/dead/letters?queue=orders.saga")
	require.Contains(t, letters, "order-17")
	require.Contains(t, letters, "order-23")
	one := s.page("/dead/letters?queue=orders.saga&where=orderId%3Dorder-23")
	require.NotContains(t, one, "order-17")
	require.Contains(t, one, ">orderId=order-23</textarea>", "the choice stays in the form")
	require.Equal(t, http.StatusNotFound, s.get("/queues?queue=nope").status)
	require.Equal(t, http.StatusNotFound, s.get("/nope").status)
	require.Contains(t, s.page("/dead/letters?queue=orders.saga&since=yesterday"), "is not a time")
}

func TestABodyIsShownOnlyOnRequest(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.fill(letter("m1", "order.paid", "permanent", "bad address"))
	path := "/dead/letter?queue=orders.saga&id=m1"
	page := s.page(path)
	for _, text := range []string{"Attempt 1", "Attempt 2", "&#43;1 min", "bad address", "worker-2", "v41", "tenant", "Show the body"} {
		require.Contains(t, page, text)
	}
	require.NotContains(t, page, "body-of-m1")
	require.NotContains(t, s.page("/dead/letters?queue=orders.saga"), "body-of-m1")
	shown := s.page(path + "&payload=1")
	require.Contains(t, shown, "{&#34;orderId&#34;:&#34;m1&#34;,&#34;secret&#34;:&#34;•••&#34;}")
	require.NotContains(t, shown, "body-of-m1")
	require.Equal(t, http.StatusNotFound, s.get("/dead/letter?queue=orders.saga&id=m2").status)
}

func TestOnlyThisServerIsMeant(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	for _, name := range []string{"localhost:1234", "127.0.0.1", "[::1]:9465", "[::1]"} {
		require.Equal(t, http.StatusOK, s.do(s.request(http.MethodGet, "/", nil, host(name))).status, name)
	}
	for _, name := range []string{"evil.example", "evil.example:9465", "127.0.0.1.nip.io", "localhost.evil.example:80", "192.168.0.7", "[::1].evil.example"} {
		a := s.do(s.request(http.MethodGet, "/", nil, host(name)))
		require.Equal(t, http.StatusMisdirectedRequest, a.status, name)
		require.NotContains(t, a.body, "Overview")
	}
}

func TestOtherPagesCanLeadHereAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	from := func(site, mode, dest string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", site)
			r.Header.Set("Sec-Fetch-Mode", mode)
			r.Header.Set("Sec-Fetch-Dest", dest)
		}
	}
	require.Equal(t, http.StatusOK, s.do(s.request(http.MethodGet, "/dead", nil, from("cross-site", "navigate", "document"))).status)
	for _, how := range []func(*http.Request){
		from("cross-site", "no-cors", "image"), from("cross-site", "cors", "empty"), from("same-site", "no-cors", "script"), from("cross-site", "navigate", "iframe"),
	} {
		require.Equal(t, http.StatusForbidden, s.do(s.request(http.MethodGet, "/dead/letters?queue=orders.saga", nil, how)).status)
	}
}

func TestPagesSayWhatTheyMayDo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, path := range []string{"/", "/dead", "/nope", "/static/console.js", "/static/nope"} {
		head := s.get(path).head
		csp := head.Get("Content-Security-Policy")
		require.Contains(t, csp, "default-src 'none'", path)
		require.Contains(t, csp, "frame-ancestors 'none'", path)
		require.NotContains(t, csp, "unsafe", path)
		require.Equal(t, "nosniff", head.Get("X-Content-Type-Options"), path)
		require.NotEmpty(t, head.Get("Cache-Control"), path)
	}
	for _, path := range []string{"/", "/queues", "/dead", "/dead/letters", "/audit"} {
		page := s.page(path)
		require.NotRegexp(t, `(?i)<[^>]+ (style|on[a-z]+)=`, page, "the policy would refuse it")
		require.NotRegexp(t, `(?i)<style|<script(?: [^>]*)?>[^<]|javascript:`, page)
		require.NotRegexp(t, `(?:src|href)="(?:https?:)?//`+"[^\"]*(?:cdn|googleapis)", page)
	}
}

// A stream tells of news, and ends with the console.
func TestStreams(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	open := func() *http.Response {
		response, err := http.DefaultTransport.RoundTrip(s.request(http.MethodGet, "/live", nil))
		require.NoError(t, err)
		return response
	}
	first := open()
	defer first.Body.Close()
	require.Equal(t, "text/event-stream", first.Header.Get("Content-Type"))
	lines := bufio.NewScanner(first.Body)
	ticks := 0
	for ticks < 3 && lines.Scan() {
		if lines.Text() == "event: tick" {
			ticks++
		}
	}
	require.Equal(t, 3, ticks)
	began := time.Now()
	s.stop()
	require.Less(t, time.Since(began), 4*time.Second, "streams do not hold up the end")
	for lines.Scan() { // to its end
	}
	require.NoError(t, lines.Err())
}

// A slow answer does not make figures old for long, and the page says how old they are.
func TestASlowServiceIsAskedAgainSoon(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{0: 2 * time.Second, 300 * time.Millisecond: 3 * time.Second, 5 * time.Second: 15 * time.Second, time.Minute: 15 * time.Second} {
		require.Equal(t, want, console.Rest(2*time.Second, took), took)
	}
	require.Equal(t, 30*time.Second, console.Rest(30*time.Second, time.Minute))
	require.Equal(t, "schema shop", console.Health(time.Now()))
	require.Regexp(t, `^schema shop; answers slowly, figures are from \d{4}-`, console.Health(time.Now().Add(-15*time.Second)))
}

// Without its services the console says what it lacks, and shows what it knew.
func TestServicesAway(t *testing.T) {
	t.Parallel()
	var database, broker *testkit.FaultyNetwork
	s := newStage(t, func(o *console.Options) {
		database, broker = testkit.Proxy(t, o.Pool.Config().ConnString()), testkit.Proxy(t, o.AMQPURL)
		o.AMQPURL = broker.Through(t, o.AMQPURL)
		o.Pool = poolThrough(t, database, o.Pool.Config().ConnString())
	})
	s.consume(func(string) error { return errors.New("bad address") })
	s.send("m1")
	s.see("/dead", "1 message with 1 cause")
	s.see("/queues", ">1</a>")
	require.NotContains(t, s.page("/"), "does not answer")

	broker.Cut()
	s.see("/", "RabbitMQ does not answer", "What lies in the queues is from")
	require.Contains(t, s.page("/queues"), ">1</a>", "what was known")
	require.Contains(t, s.page("/dead/letters?queue=orders.saga"), "The queue could not be looked into")

	database.Cut()
	s.see("/", "PostgreSQL does not answer", "is from")
	require.Contains(t, s.page("/dead"), "bad address", "what was known")
	require.Contains(t, s.page("/dead"), "as they were known before the database went away")
	require.Equal(t, http.StatusServiceUnavailable, s.get("/audit").status)
	require.Contains(t, s.get("/audit").body, "the audit cannot be read")
	require.Contains(t, s.get("/audit").body, `id="error" data-live`, "it comes by itself")
	change := s.post("/queues/pause", "queue", work, "reason", "r").body
	require.NotContains(t, change, `id="error" data-live`, "a change does not")
	require.Contains(t, change, "It is not known whether this was done", "the answer may be all that was lost")
	require.NotContains(t, change, "This did not work")

	broker.Heal(t)
	database.Heal(t)
	testkit.Eventually(t, patience, "both back", func() bool { return !strings.Contains(s.page("/"), "does not answer") })
}

// A console that begins while nothing is there serves pages all the same.
func TestServicesAwayFromTheStart(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(o *console.Options) {
		database, broker := testkit.Proxy(t, o.Pool.Config().ConnString()), testkit.Proxy(t, o.AMQPURL)
		o.AMQPURL = broker.Through(t, o.AMQPURL)
		o.ManagementURL = "http://127.0.0.1:1"
		o.Pool = poolThrough(t, database, o.Pool.Config().ConnString())
		broker.Cut()
		database.Cut()
	})
	s.see("/", "PostgreSQL does not answer", "RabbitMQ does not answer", "is missing")
	require.Contains(t, s.page("/queues"), "orders.saga")
	require.Equal(t, http.StatusServiceUnavailable, s.get("/dead").status)
}

// A schema that was not made yet is no database that is away.
func TestASchemaThatIsMissing(t *testing.T) {
	t.Parallel()
	s := newStage(t, func(o *console.Options) { o.Schema = testkit.Name("none") })
	s.see("/", "The database cannot be used", "surefoot migrate up")
	require.NotContains(t, s.page("/"), "PostgreSQL does not answer")
}
