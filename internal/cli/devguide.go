package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/pause"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

// guide tells whoever runs `surefoot dev` where things are, what to try, and which messages were handled, which the roles' logs do not say.
type guide struct {
	dev     *developer
	logger  zerolog.Logger
	started chan string // the address of the probes
	console chan string
}

const (
	guideEvery = 300 * time.Millisecond
	// guideBack is how far back one look at the inbox goes: a row's time is that of the start of its transaction.
	guideBack = 10 * time.Second
	guideMost = 50

	guideHandledSQL pg.SQL = `
SELECT i.message, c.queue FROM @schema@.inbox i JOIN @schema@.inbox_consumers c ON c.id = i.consumer
WHERE i.handled_at > clock_timestamp() - $1::interval ORDER BY i.handled_at DESC LIMIT $2`
)

func newGuide(d *developer, logger zerolog.Logger) *guide {
	return &guide{dev: d, logger: logger, started: make(chan string, 1), console: make(chan string, 8)}
}

func (g *guide) probes(addr string) { g.started <- addr }

// consoleAt is told an address at each start of the console's role; the first is the one that is shown.
func (g *guide) consoleAt(addr string) {
	select {
	case g.console <- addr:
	default:
	}
}

// start works until the function that it returns is called.
func (g *guide) start(ctx context.Context) (stop func(), err error) {
	c := g.dev.config
	pool, err := pg.Open(ctx, pg.Options{URL: c.Database.URL.Reveal(), Name: "surefoot dev " + g.dev.session.env.Host, MaxConns: 1})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		defer telemetry.FatalOnPanic(g.logger)
		if g.ready(ctx) {
			g.handled(ctx, pool)
		}
	})
	return func() { cancel(); running.Wait(); pool.Close() }, nil
}

// ready waits until all roles are, and then tells where things are; false when ctx has ended.
func (g *guide) ready(ctx context.Context) bool {
	probes, page := "", ""
	for probes == "" || page == "" {
		select {
		case probes = <-g.started:
		case page = <-g.console:
		case <-ctx.Done():
			return false
		}
	}
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+probes+"/readyz", http.NoBody)
		if err != nil {
			return false
		}
		if response, err := client.Do(request); err == nil {
			_ = response.Body.Close() // not read
			if response.StatusCode == http.StatusOK {
				g.dev.session.note("%s", g.text(probes, page))
				return true
			}
		}
		if !pause.For(ctx, guideEvery) {
			return false
		}
	}
}

// text is where things are, and what to try in another terminal.
func (g *guide) text(probes, page string) string {
	c := g.dev.config
	login, local := g.dev.session.consoleLogin(c)
	database := c.Database.URL.String()
	if local { // as consoleLogin does: its password is of no use elsewhere
		database = c.Database.URL.Reveal()
	}
	lines := []string{
		"",
		"console              http://" + page + "/",
		"RabbitMQ's console   " + consoleURL(c) + "/   login: " + login,
		"database             " + database,
		"metrics, readiness   http://" + probes + "/metrics   http://" + probes + "/readyz",
		"",
	}
	lines = append(lines, g.elsewhere(local)...)
	if g.dev.practice != "" {
		lines = append(lines, g.practice()...)
	} else {
		lines = append(lines, g.event()...)
	}
	return strings.Join(append(lines, "", "Ctrl-C stops everything; data stay."), "\n")
}

// elsewhere is what another terminal needs for `surefoot` to find the same services.
func (g *guide) elsewhere(local bool) []string {
	lines := []string{"In another terminal, with the same SUREFOOT_DATABASE_URL and SUREFOOT_AMQP_URL:"}
	if local {
		script := "scripts/stack"
		if g.dev.stack != nil {
			script = nearby(filepath.Join(g.dev.stack.root, script))
		}
		lines = []string{"In another terminal:", `  eval "$(` + script + ` env)"   # where the services are`}
	}
	if schema := g.dev.config.Database.Schema; schema != config.Default().Database.Schema {
		lines = append(lines, "  export SUREFOOT_SCHEMA="+schema)
	}
	return lines
}

// plainKey is a routing key that is one event's type, and needs no quotes in a shell.
var plainKey = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)

// event is one for a queue of the configuration; none where no binding is the type of one.
func (g *guide) event() []string {
	c := g.dev.config
	exchange := c.DefaultExchange()
	for _, q := range c.Topology.Queues {
		at := slices.IndexFunc(q.Bindings, plainKey.MatchString)
		if at >= 0 && cmp.Or(q.Exchange, c.Topology.Exchange) == exchange {
			return []string{fmt.Sprintf(`  echo '{"type":"%s","key":"1","payload":{}}' | %s outbox add   # to %s`, q.Bindings[at], nearby(g.dev.program), q.Name)}
		}
	}
	return nil
}

// practice is an order that is done, one that is not, and the way of that one back.
func (g *guide) practice() []string {
	program := nearby(g.dev.program)
	message := func(key, more string) string {
		return fmt.Sprintf(`  echo '{"type":"%s","key":"%s","payload":{"orderId":"%s"%s}}' | %s outbox add`, practiceType, key, key, more, program)
	}
	lines := []string{
		message("1", ""),
		message("2", `,"fail":"permanent"`) + "   # becomes a dead letter",
		"  " + program + " dlq show --queue " + practiceQueue,
		"  touch " + nearby(g.dev.practice) + "   # its cause is mended",
		"  " + program + " dlq redrive --queue " + practiceQueue + " --yes",
	}
	if _, err := os.Stat(g.dev.practice); err == nil {
		lines = append(lines, "", "Nothing fails while "+nearby(g.dev.practice)+" is there: remove it to see a dead letter.")
	}
	return lines
}

// nearby is a path as one would type it: relative where it is below the working directory.
func nearby(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	if near, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(near) {
		return near
	}
	return path
}

// handled tells which messages were handled, each once; not those of before.
func (g *guide) handled(ctx context.Context, pool *pgxpool.Pool) {
	told, fresh := map[uuid.UUID]time.Time{}, false
	for ; ; fresh = true {
		now := time.Now()
		for _, one := range g.look(ctx, pool) {
			if _, again := told[one.Message]; fresh && !again {
				g.logger.Info().Str(telemetry.FieldEventID, one.Message.String()).Str(telemetry.FieldQueue, one.Queue).Msg("handled")
			}
			told[one.Message] = now
		}
		maps.DeleteFunc(told, func(_ uuid.UUID, at time.Time) bool { return now.Sub(at) > 2*guideBack })
		if !pause.For(ctx, guideEvery) {
			return
		}
	}
}

// handledRow is a message in the inbox.
type handledRow struct {
	Message uuid.UUID
	Queue   string
}

// look returns what was handled lately, the oldest first; nothing while the database is away, which the roles tell.
func (g *guide) look(ctx context.Context, pool *pgxpool.Pool) []handledRow {
	rows, err := pool.Query(ctx, guideHandledSQL.In(g.dev.config.Database.Schema), guideBack, guideMost)
	if err != nil {
		return nil
	}
	found, _ := pgx.CollectRows(rows, pgx.RowToStructByPos[handledRow])
	slices.Reverse(found)
	return found
}
