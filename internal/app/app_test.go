package app_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// runner is a role made of a function.
type runner func(context.Context) error

func (r runner) Run(ctx context.Context) error { return r(ctx) }

// role is a role that runs f once it has been built.
func role(name string, f func(context.Context, app.Deps) error) app.Role {
	return app.Role{
		Name: name, Configured: func(*config.Config) bool { return true },
		New: func(d app.Deps) (app.Runner, error) {
			return runner(func(ctx context.Context) error { return f(ctx, d) }), nil
		},
	}
}

// idle is ready and works until it is told to stop.
func idle(ctx context.Context, d app.Deps) error {
	d.Ready(nil)
	<-ctx.Done()
	return nil
}

// process is one application under test.
type process struct {
	url  string
	stop context.CancelFunc
	done chan error
}

func settings(db testkit.DB) *config.Config {
	c := config.Default()
	c.Database.URL, c.Database.Schema = config.URL(db.URL), db.Schema
	c.HTTP.Listen = "127.0.0.1:0"
	return &c
}

// loaded gives a configuration what loading would: the URLs that are connected with.
func loaded(c *config.Config) *config.Config {
	c.Database.Source = cmp.Or(c.Database.Source, c.Database.URL)
	c.AMQP.Source = cmp.Or(c.AMQP.Source, c.AMQP.URL)
	c.AMQP.ManagementSource = cmp.Or(c.AMQP.ManagementSource, c.AMQP.ManagementURL)
	return c
}

// start runs roles and waits until the probes answer; it fails the test if they do not stop at its end.
func start(t *testing.T, c *config.Config, roles ...app.Role) *process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &process{stop: cancel, done: make(chan error, 1)}
	addr := make(chan string, 1)
	go func() {
		p.done <- app.Run(ctx, app.Options{
			Config: loaded(c), Available: roles, Logger: testkit.Logger(t), Version: "v9",
			Listening: func(at string) { addr <- at },
		})
	}()
	select {
	case at := <-addr:
		p.url = "http://" + at
	case err := <-p.done:
		require.FailNow(t, "did not start", "%v", err)
	case <-time.After(patience):
		require.FailNow(t, "the probes do not answer")
	}
	t.Cleanup(cancel)
	return p
}

// end stops the process and returns what Run returned.
func (p *process) end(t *testing.T) error {
	t.Helper()
	p.stop()
	return p.wait(t)
}

func (p *process) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-p.done:
		return err
	case <-time.After(patience):
		require.FailNow(t, "does not stop")
		return nil
	}
}

type probe struct {
	code    int
	body    string
	Status  string
	Reasons map[string]string
}

func (p *process) get(t *testing.T, path string) (got probe) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	response, err := client.Get(p.url + path)
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	got.code, got.body = response.StatusCode, string(body)
	_ = json.Unmarshal(body, &got) // metrics are no JSON
	return got
}

func (p *process) eventually(t *testing.T, what string, is func(probe) bool) {
	t.Helper()
	testkit.Eventually(t, patience, what, func() bool { return is(p.get(t, "/readyz")) })
}

func ready(got probe) bool { return got.code == http.StatusOK }

func TestReadyStopAndMetrics(t *testing.T) {
	t.Parallel()
	p := start(t, settings(testkit.Database(t)), role("a", func(ctx context.Context, d app.Deps) error {
		if _, err := d.Pool("a"); err != nil {
			return err
		}
		return idle(ctx, d)
	}), role("b", idle))
	p.eventually(t, "readiness", ready)
	require.Equal(t, http.StatusOK, p.get(t, "/livez").code)
	metrics := p.get(t, "/metrics").body
	for _, want := range []string{
		`surefoot_build_info{version="v9"} 1`, "go_goroutines ", "process_resident_memory_bytes ",
		`surefoot_pool_connections{pool="a",state="max"} 10`, `surefoot_pool_acquires_total{pool="http"} `,
	} {
		require.Contains(t, metrics, want)
	}
	require.Equal(t, http.StatusMethodNotAllowed, post(t, p.url+"/readyz"))
	require.NoError(t, p.end(t))
	_, err := net.Dial("tcp", p.url[len("http://"):])
	require.Error(t, err, "the probes still answer")
}

func post(t *testing.T, url string) int {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Post(url, "text/plain", http.NoBody)
	require.NoError(t, err)
	defer response.Body.Close()
	return response.StatusCode
}

func TestDatabaseAwayAtStart(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	network := testkit.Proxy(t, db.URL)
	c := settings(db)
	c.Database.URL = config.URL(network.Through(t, db.URL))
	network.Cut()
	var started atomic.Bool
	p := start(t, c, role("a", func(ctx context.Context, d app.Deps) error {
		started.Store(true)
		return idle(ctx, d)
	}))
	p.eventually(t, "a reason", func(got probe) bool {
		return got.code == http.StatusServiceUnavailable && got.Reasons["database"] != "" && got.Reasons["database"] != "starting"
	})
	got := p.get(t, "/readyz")
	require.Equal(t, "starting", got.Reasons["a"])
	require.Contains(t, got.Reasons["database"], "connect")
	require.Equal(t, http.StatusOK, p.get(t, "/livez").code, "liveness looks at the database")
	require.False(t, started.Load(), "the role has started without its database")

	network.Heal(t)
	p.eventually(t, "readiness", ready)
	require.True(t, started.Load())

	network.Cut()
	p.eventually(t, "readiness to notice the outage", func(got probe) bool { return got.Reasons["database"] != "" })
	require.Equal(t, http.StatusOK, p.get(t, "/livez").code)
	network.Heal(t)
	p.eventually(t, "readiness", ready)
	require.NoError(t, p.end(t))
}

// The first reason must not hide the next one: it may be the one that a person can mend.
func TestTheLogTellsEachReasonWhyTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	network := testkit.Proxy(t, db.URL)
	c := settings(db)
	c.Database.URL, c.Database.Schema = config.URL(network.Through(t, db.URL)), "nowhere"
	network.Cut()
	lines, writer := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), patience) // before the first reason is told once more
	done := make(chan error, 1)
	go func() {
		err := app.Run(ctx, app.Options{Config: loaded(c), Available: []app.Role{role("a", idle)}, Logger: zerolog.New(writer)})
		done <- errors.Join(err, writer.Close())
	}()
	var reasons []string
	for scan := bufio.NewScanner(lines); scan.Scan(); {
		var line struct{ Message, Error string }
		require.NoError(t, json.Unmarshal(scan.Bytes(), &line))
		if line.Message != "waiting for the database" {
			continue
		}
		if reasons = append(reasons, line.Error); len(reasons) == 1 {
			network.Heal(t)
		}
		if strings.Contains(line.Error, "run `surefoot migrate up`") {
			cancel()
		}
	}
	require.NoError(t, <-done)
	cancel()
	require.GreaterOrEqual(t, len(reasons), 2)
	require.Contains(t, reasons[0], "connect")
}

func TestNotReadyFromTheFirstMomentOn(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	asked := false
	err := app.Run(ctx, app.Options{
		Config: loaded(settings(testkit.Database(t))), Available: []app.Role{role("a", idle)},
		Listening: func(addr string) { // nothing but the probes has started
			got := (&process{url: "http://" + addr}).get(t, "/readyz")
			asked = true
			require.Equal(t, http.StatusServiceUnavailable, got.code)
			require.Equal(t, map[string]string{"database": "starting", "a": "starting"}, got.Reasons)
			cancel()
		},
	})
	require.NoError(t, err)
	require.True(t, asked)
}

func TestStopWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	network := testkit.Proxy(t, db.URL)
	network.HalfOpen(t)
	c := settings(db)
	c.Database.URL = config.URL(network.Through(t, db.URL))
	p := start(t, c, role("a", idle))
	require.Equal(t, http.StatusServiceUnavailable, p.get(t, "/readyz").code)
	require.NoError(t, p.end(t))
}

// Nothing is left to be done in the database once the roles have stopped: that its connections do not close is no failure.
func TestStopWhileTheDatabaseHangs(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	network := testkit.Proxy(t, db.URL)
	c := settings(db)
	c.Database.URL = config.URL(network.Through(t, db.URL))
	c.Shutdown.Timeout = 4 * time.Second
	asking := make(chan struct{})
	p := start(t, c, role("a", func(ctx context.Context, d app.Deps) error {
		pool, err := d.Pool("a")
		if err != nil {
			return err
		}
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		d.Ready(nil)
		<-asking
		_, err = conn.Exec(ctx, "SELECT 1") // unanswered, until the context ends
		return err
	}))
	p.eventually(t, "readiness", ready)
	network.HalfOpen(t)
	close(asking)
	began := time.Now()
	require.NoError(t, p.end(t))
	require.Less(t, time.Since(began), c.Shutdown.Timeout)
}

// Rights that a role does not have do not come by waiting.
func TestARoleWithoutRightsIsToldSoAtOnce(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	guest := testkit.Name("guest")
	_, err := db.Pool.Exec(t.Context(), "CREATE ROLE "+guest+" LOGIN PASSWORD 'x'")
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := db.Pool.Exec(context.WithoutCancel(t.Context()), "DROP ROLE "+guest)
		require.NoError(t, err)
	})
	u, err := url.Parse(db.Direct)
	require.NoError(t, err)
	u.User = url.UserPassword(guest, "x")
	c := settings(db)
	c.Database.URL = config.URL(u.String())
	err = start(t, c, role("a", idle)).wait(t)
	require.ErrorContains(t, err, "the database role lacks rights in schema "+db.Schema)
	require.Equal(t, "42501", resilience.SQLStateOf(err))
}

func TestSchemaIsWaitedFor(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	_, err := db.Pool.Exec(t.Context(), "ALTER SCHEMA "+db.Schema+" RENAME TO "+db.Schema+"_away")
	require.NoError(t, err)
	p := start(t, settings(db), role("a", idle))
	p.eventually(t, "a reason that says what to do", func(got probe) bool {
		return got.Reasons["database"] == "schema "+db.Schema+" is not there yet: run `surefoot migrate up`"
	})
	_, err = db.Pool.Exec(t.Context(), "ALTER SCHEMA "+db.Schema+"_away RENAME TO "+db.Schema)
	require.NoError(t, err)
	p.eventually(t, "readiness", ready)
	require.NoError(t, p.end(t))
}

func TestStopDrainsAndTheProbesEndLast(t *testing.T) {
	t.Parallel()
	draining, release := make(chan struct{}), make(chan struct{})
	p := start(t, settings(testkit.Database(t)), role("a", func(ctx context.Context, d app.Deps) error {
		pool, err := d.Pool("a")
		if err != nil {
			return err
		}
		d.Ready(nil)
		<-ctx.Done()
		close(draining)
		<-release
		return pool.Ping(context.WithoutCancel(ctx)) // its pool must outlive the drain
	}))
	p.eventually(t, "readiness", ready)
	p.stop()
	<-draining
	got := p.get(t, "/readyz")
	require.Equal(t, http.StatusServiceUnavailable, got.code)
	require.Equal(t, map[string]string{"process": "draining"}, got.Reasons)
	require.Equal(t, http.StatusOK, p.get(t, "/livez").code, "a draining process must not be killed")
	close(release)
	require.NoError(t, p.wait(t))
}

func TestRoleThatDoesNotStopIsLeftBehind(t *testing.T) {
	t.Parallel()
	c := settings(testkit.Database(t))
	c.Shutdown.Timeout = time.Second
	stuck := make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	p := start(t, c, role("good", idle), role("stuck", func(ctx context.Context, d app.Deps) error {
		pool, err := d.Pool("stuck")
		if err != nil {
			return err
		}
		conn, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer conn.Release()
		d.Ready(nil)
		<-stuck
		return nil
	}))
	p.eventually(t, "readiness", ready)
	began := time.Now()
	err := p.end(t)
	require.ErrorContains(t, err, "stuck did not stop in time")
	require.NotContains(t, err.Error(), "good")
	require.Less(t, time.Since(began), patience/2)
	require.Greater(t, time.Since(began), 700*time.Millisecond, "the role was not given its time")
}

func TestDrainLeavesTimeToReturn(t *testing.T) {
	t.Parallel()
	c := settings(testkit.Database(t))
	drain := make(chan time.Duration, 1)
	p := start(t, c, role("a", func(ctx context.Context, d app.Deps) error {
		drain <- d.Drain
		return idle(ctx, d)
	}))
	require.Equal(t, 25*time.Second, c.Shutdown.Timeout)
	got := <-drain
	require.Greater(t, got, 15*time.Second)
	require.Less(t, got, 20*time.Second)
	require.NoError(t, p.end(t))
}

func TestFailureOfOneStopsAll(t *testing.T) {
	t.Parallel()
	stopped := make(chan struct{})
	p := start(t, settings(testkit.Database(t)), role("good", func(ctx context.Context, d app.Deps) error {
		defer close(stopped)
		return idle(ctx, d)
	}), role("bad", func(context.Context, app.Deps) error { return errors.New("queue orders.saga has no dead-letter path") }))
	require.EqualError(t, p.wait(t), "bad: queue orders.saga has no dead-letter path")
	<-stopped
}

func TestRoleThatEndsByItselfIsAFailure(t *testing.T) {
	t.Parallel()
	p := start(t, settings(testkit.Database(t)), role("quiet", func(context.Context, app.Deps) error { return nil }))
	require.EqualError(t, p.wait(t), "quiet: ended without being told to")
}

func TestPassingFailureIsRepeated(t *testing.T) {
	t.Parallel()
	var tries atomic.Int32
	again := make(chan struct{})
	p := start(t, settings(testkit.Database(t)), role("a", func(ctx context.Context, d app.Deps) error {
		if tries.Add(1) == 1 {
			d.Ready(nil)
			return &timeoutError{}
		}
		<-again
		return idle(ctx, d)
	}))
	p.eventually(t, "the reason of the failure", func(got probe) bool { return got.Reasons["a"] == "broker took too long" })
	close(again)
	p.eventually(t, "readiness", ready)
	require.EqualValues(t, 2, tries.Load())
	require.NoError(t, p.end(t))
}

// timeoutError is a net.Error, as a broker that does not answer makes.
type timeoutError struct{}

func (*timeoutError) Error() string   { return "broker took too long" }
func (*timeoutError) Timeout() bool   { return true }
func (*timeoutError) Temporary() bool { return true }

func TestRoleThatCannotBeBuilt(t *testing.T) {
	t.Parallel()
	bad := role("bad", idle)
	bad.New = func(app.Deps) (app.Runner, error) { return nil, errors.New("Exchange is missing") }
	err := app.Run(t.Context(), app.Options{
		Config: loaded(settings(testkit.Database(t))), Available: []app.Role{role("good", func(context.Context, app.Deps) error {
			t.Error("a role works though another cannot be built")
			return nil
		}), bad},
	})
	require.EqualError(t, err, "set up bad: Exchange is missing")
	setup, ok := errors.AsType[*app.SetupError](err)
	require.True(t, ok)
	require.Equal(t, "bad", setup.Role)
}

// Whoever reads the log of a start must not first see the process serve.
func TestNothingIsOpenedForAConfigurationThatCannotWork(t *testing.T) {
	t.Parallel()
	faulty := func(name string) app.Role {
		bad := role(name, idle)
		bad.New = func(d app.Deps) (app.Runner, error) {
			_, err := d.Pool(name)
			require.NoError(t, err)
			return nil, errors.New("no good")
		}
		return bad
	}
	err := app.Run(t.Context(), app.Options{
		Config: loaded(settings(testkit.DB{URL: "postgres://ann@127.0.0.1:1/d", Schema: "surefoot"})), Available: []app.Role{faulty("a"), faulty("b")},
		Listening: func(string) { t.Error("the probes are served") },
	})
	require.EqualError(t, err, "set up a: no good\nset up b: no good")
}

func TestRolesAreChosen(t *testing.T) {
	t.Parallel()
	c := settings(testkit.DB{URL: "postgres://ann@127.0.0.1:1/d", Schema: "surefoot"})
	off := role("off", idle)
	off.Configured, off.Missing = func(*config.Config) bool { return false }, "give it work"
	err := app.Run(t.Context(), app.Options{Config: c, Available: []app.Role{off}})
	require.ErrorIs(t, err, app.ErrNothingToRun)
	err = app.Run(t.Context(), app.Options{Config: c, Available: []app.Role{off}, Roles: []string{"off", "of"}})
	require.EqualError(t, err, "no such role among off, of")
	err = app.Run(t.Context(), app.Options{Config: c, Available: []app.Role{off}, Roles: []string{"off"}})
	require.ErrorIs(t, err, app.ErrNothingToRun)
	require.EqualError(t, err, "the configuration has nothing to run: off: give it work")
	p := start(t, c, off, role("on", idle))
	p.eventually(t, "only the configured role", func(got probe) bool {
		return got.Reasons["on"] != "" && got.Reasons["off"] == ""
	})
	require.NoError(t, p.end(t))
}

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	p := start(t, settings(db), role("a", idle))
	c := settings(db)
	c.HTTP.Listen = p.url[len("http://"):]
	err := app.Run(t.Context(), app.Options{Config: loaded(c), Available: []app.Role{role("a", idle)}})
	require.ErrorContains(t, err, "choose another http.listen")
	require.NoError(t, p.end(t))
}
