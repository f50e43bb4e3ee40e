package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Options of one examination.
type Options struct {
	// Config that was loaded. Required. A URL that is missing is a finding.
	Config *config.Config
	// Roles whose rights are looked at, by the names of package app. Default: those that the configuration has.
	Roles []string
	// Skip are names of checks that are left out. Default: none.
	Skip []string
	// ReservationExpiry is how long lasts what sagas hold, such as a reservation: the watchdog must be done before. Default: not looked at.
	ReservationExpiry time.Duration
	// Who looks, for the lock of a dead-letter queue; Host and Version name this process in connections. Default: "doctor", "unknown", "dev".
	Who, Host, Version string
	// Now is this host's clock. Default: time.Now.
	Now func() time.Time
	// Logger of connections. Default: none.
	Logger zerolog.Logger

	limits limits
}

// ErrUnknownName says that the options name a check or a role that does not exist.
var ErrUnknownName = errors.New("unknown name")

// limits from which a figure is a finding.
type limits struct {
	clock       time.Duration // difference of two clocks
	transaction time.Duration // age of an open transaction
	table       int64         // bytes
	dead        int64         // dead rows of a table
	wear        float64       // used share of a dead-letter queue's delivery limit
}

func defaultLimits() limits {
	return limits{clock: 2 * time.Second, transaction: 5 * time.Minute, table: 10 << 30, dead: 5_000_000, wear: 0.1}
}

// checkLimit bounds one check.
const checkLimit = 20 * time.Second

// check is one look at one thing.
type check struct {
	name  string
	needs part
	run   func(*visit, context.Context) ([]Finding, error)
}

// checks are all of them, in the order in which they are made.
func checks() []check {
	return []check{
		{"schema", database, (*visit).schema},
		{"database-rights", database, (*visit).databaseRights},
		{"rules", database | tables, (*visit).rules},
		{"database-clock", database, (*visit).databaseClock},
		{"long-transactions", database, (*visit).longTransactions},
		{"table-sizes", database | tables, (*visit).tableSizes},
		{"pooler", database, (*visit).pooler},
		{"synchronous-commit", database, (*visit).synchronousCommit},
		{"broker-version", broker, (*visit).brokerVersion},
		{"broker-limits", broker | management, (*visit).brokerLimits},
		{"broker-rights", broker, (*visit).brokerRights},
		{"broker-clock", management, (*visit).brokerClock},
		{"topology", management, (*visit).topology},
		{"dead-letter-paths", broker, (*visit).deadLetterPaths},
		{"dlq-delivery-limit", broker | management, (*visit).dlqDeliveryLimit},
		{"dlq-wear", database | tables | broker | management, (*visit).dlqWear},
		{"certificates", 0, (*visit).certificates},
		{"consumer-timeout", 0, (*visit).consumerTimeout},
		{"retry-window", 0, (*visit).retryWindow},
	}
}

// Checks are the names of all checks.
func Checks() []string {
	var names []string
	for _, c := range checks() {
		names = append(names, c.name)
	}
	return names
}

// Examine makes all checks, as far as the services are there, and returns what they found, worst first. Its error says that nothing could be
// looked at for a reason that no finding can name.
func Examine(ctx context.Context, o Options) ([]Finding, error) {
	for _, name := range o.Skip {
		if !slices.Contains(Checks(), name) {
			return nil, fmt.Errorf("%w: there is no check %q; there are %s", ErrUnknownName, name, strings.Join(Checks(), ", "))
		}
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	v := &visit{o: o, config: o.Config, away: map[part]error{}, omitted: map[part][]string{}}
	defer v.close()
	v.open(ctx)
	var all []Finding
	for _, c := range checks() {
		if !slices.Contains(o.Skip, c.name) {
			all = append(all, v.make(ctx, c)...)
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return sorted(append(v.absences(), all...)), nil
}

func (o *Options) complete() error {
	o.Who = cmp.Or(o.Who, "doctor")
	if o.Now == nil {
		o.Now = time.Now
	}
	o.limits = cmp.Or(o.limits, defaultLimits())
	var known, configured []string
	for _, role := range app.Roles() {
		known = append(known, role.Name)
		if role.Configured(o.Config) {
			configured = append(configured, role.Name)
		}
	}
	if len(o.Roles) == 0 {
		o.Roles = configured
	}
	for _, name := range o.Roles {
		if !slices.Contains(known, name) {
			return fmt.Errorf("%w: there is no role %q; there are %s", ErrUnknownName, name, strings.Join(known, ", "))
		}
	}
	return nil
}

// make makes one check, or notes that a part that it needs is away.
func (v *visit) make(ctx context.Context, c check) []Finding {
	for _, p := range parts() {
		if _, away := v.away[p]; away && c.needs&p != 0 {
			v.omitted[p] = append(v.omitted[p], c.name)
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	found, err := c.run(v, ctx)
	if err != nil {
		found = append(found, failure(c.name, err))
	}
	for i := range found {
		found[i].Check = c.name
	}
	return found
}

// failure is a check that could not be made.
func failure(check string, err error) Finding {
	f := Finding{Severity: Unknown, Found: "could not be looked at: " + err.Error(), Mend: "look again when the cause is gone; --skip " + check + " leaves it out"}
	if resilience.SQLStateOf(err) == pg.InsufficientPrivilege {
		f.Mend = "grant the right that it names to the database user, or leave it out: --skip " + check
	}
	f.OutOfReach = outOfReach(err) || errors.Is(err, context.DeadlineExceeded)
	return f
}

// outOfReach knows a service that does not answer from one that refuses.
func outOfReach(err error) bool {
	return pg.IsUnavailable(err) || resilience.IsNetwork(err) || resilience.Classify(err) == resilience.ClassUnavailable ||
		errors.Is(err, rabbit.ErrManagementUnreachable)
}
