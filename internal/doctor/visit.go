package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/topology"
)

// part is something that checks need; they are joined by |.
type part int

const (
	database part = 1 << iota
	tables        // Surefoot's, in the version that this program knows
	broker
	management
)

func parts() []part { return []part{database, tables, broker, management} }

// String names the part.
func (p part) String() string {
	return map[part]string{database: "database", tables: "tables", broker: "broker", management: "management"}[p]
}

// visit is one examination. It is used by one goroutine.
type visit struct {
	o          Options
	config     *config.Config
	pool       *pgxpool.Pool
	conn       *rabbit.Conn
	management *rabbit.Management
	state      topology.State // of the vhost; only with management
	unchecked  []string       // of the state
	alarmed    bool           // the broker takes nothing that is published
	away       map[part]error
	omitted    map[part][]string
}

var errNoURL = errors.New("no URL is configured")

func (v *visit) open(ctx context.Context) {
	v.note(v.openDatabase(ctx), database, tables)
	v.note(v.openBroker(ctx), broker)
	v.note(v.openManagement(ctx), management)
}

func (v *visit) note(err error, of ...part) {
	for _, p := range of {
		if err != nil {
			v.away[p] = err
		}
	}
}

func (v *visit) openDatabase(ctx context.Context) (err error) {
	c := v.config.Database
	if c.URL == "" {
		return errNoURL
	}
	v.pool, err = pg.Open(ctx, pg.Options{
		URL: c.URL.Reveal(), Name: "surefoot doctor " + v.o.Host, MaxConns: 2, ConnectTimeout: c.ConnectTimeout, StatementTimeout: c.StatementTimeout,
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	return v.pool.Ping(ctx)
}

func (v *visit) openBroker(ctx context.Context) (err error) {
	if v.config.AMQP.URL == "" {
		return errNoURL
	}
	v.conn, err = rabbit.Dial(ctx, rabbit.Options{
		URL: v.config.AMQP.URL.Reveal(), Role: "doctor", Host: v.o.Host, Version: v.o.Version, TLS: v.config.AMQP.TLS(), Logger: v.o.Logger,
	})
	return err
}

func (v *visit) openManagement(ctx context.Context) (err error) {
	c := v.config.AMQP
	if c.URL == "" {
		return errNoURL
	}
	m, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: c.URL.Reveal(), URL: c.ManagementURL.Reveal(), TLS: c.TLS()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	if v.state, v.unchecked, err = topology.Read(ctx, m); err == nil {
		v.management = m
	}
	return err
}

func (v *visit) close() {
	if v.pool != nil {
		v.pool.Close()
	}
	if v.conn != nil {
		_ = v.conn.Close()
	}
}

// absences are the parts that are away, each with the checks that were left out for it.
func (v *visit) absences() []Finding {
	var found []Finding
	for _, p := range parts() {
		err, away := v.away[p]
		if !away || len(v.omitted[p]) == 0 {
			continue
		}
		f := Finding{
			Severity: Unknown, Check: p.String(), About: p.String(), Found: err.Error(), OutOfReach: outOfReach(err) && !refused(err),
			Meaning: "not looked at: " + strings.Join(v.omitted[p], ", "), Mend: mendAbsence(p, err),
		}
		if refused(err) {
			f.Severity = Critical
		}
		if p == management && f.Severity == Critical {
			f.Severity = Warning // everything but what looks works without
		}
		found = append(found, f)
	}
	return found
}

// refused knows a server that is there and does not let this user, or to this database or vhost.
func refused(err error) bool {
	state, code := resilience.SQLStateOf(err), rabbit.Code(err)
	return strings.HasPrefix(state, "28") || state == pg.UndefinedDatabase || slices.Contains([]int{amqp.AccessRefused, amqp.NotAllowed}, code) ||
		errors.Is(err, rabbit.ErrManagementDenied) || errors.Is(err, rabbit.ErrNoVhost)
}

func mendAbsence(p part, err error) string {
	switch {
	case errors.Is(err, errNoURL):
		return fmt.Sprintf("set SUREFOOT_%s_URL", map[part]string{database: "DATABASE", broker: "AMQP", management: "AMQP"}[p])
	case p == database && pg.Advice(err) != "":
		return pg.Advice(err)
	case rabbit.Advice(err) != "":
		return rabbit.Advice(err)
	case p == broker && refused(err):
		return "give the user what is refused (rabbitmqctl set_permissions), or correct SUREFOOT_AMQP_URL"
	case p == tables:
		return "`surefoot migrate up`"
	case p == management:
		return "enable the plugin rabbitmq_management, or set SUREFOOT_MANAGEMENT_URL"
	}
	return "start it, or correct its address in SUREFOOT_" + map[part]string{database: "DATABASE", broker: "AMQP"}[p] + "_URL"
}
