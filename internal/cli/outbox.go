package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/outbox"
)

func outboxCommand(s *session) *cobra.Command {
	return noun("outbox", "Add messages to the outbox, and look after those that could not be published",
		outboxAdd(s), outboxLs(s), outboxShow(s), outboxRetry(s), outboxDiscard(s))
}

const (
	defaultParked = 100
	maxParked     = 10_000
)

// parkedFilter gives a command the flags that choose parked rows and, where it says so, those of stopped routes.
func parkedFilter(cmd *cobra.Command, stopped bool) *outbox.Filter {
	f := &outbox.Filter{Limit: defaultParked}
	flags := cmd.Flags()
	usage := "only rows in this `state`: retry (tried again by itself) or dead"
	if stopped {
		usage = "only rows in this `state`: retry (tried again by itself), dead, or stopped (pending, of a stopped route)"
	}
	flags.StringVar(&f.State, "state", "", usage)
	flags.StringVar(&f.Key, "key", "", "only rows of this ordering `key`")
	flags.StringVar(&f.Type, "type", "", "only messages of this `type`")
	boundFlag(flags, &f.Limit, "limit", maxParked, "the most rows")
	return f
}

func checkFilter(f *outbox.Filter, stopped bool) error {
	switch {
	case f.State == "" || f.State == outbox.StateRetry || f.State == outbox.StateDead:
	case !stopped && f.State == outbox.StateStopped:
		return usageErrorf("bind a queue to the route (see `surefoot outbox ls --routes`) and they are published",
			"rows of a stopped route are tried again by themselves, every few seconds")
	case !stopped:
		return usageErrorf("", "--state is %q, but must be retry or dead", f.State)
	case f.State != outbox.StateStopped:
		return usageErrorf("`surefoot outbox ls` also lists pending and waiting ones", "--state is %q, but must be retry, dead or stopped", f.State)
	}
	return nil
}

// checkListed also takes the states of rows that nothing can be done to.
func checkListed(f *outbox.Filter) error {
	switch f.State {
	case "", outbox.StateRetry, outbox.StateDead, outbox.StateStopped, outbox.StatePending, outbox.StateWaiting:
		return nil
	}
	return usageErrorf("", "--state is %q, but must be retry, dead, stopped, pending or waiting", f.State)
}

func outboxLs(s *session) *cobra.Command {
	l := &outboxLister{session: s}
	cmd := &cobra.Command{
		Use: "ls", Short: "List rows by state with their reasons, by default the parked ones; stopped routes and the state of the whole outbox go to stderr", Args: cobra.NoArgs,
		Long: "List the rows that could not be published: retry is tried again by itself, dead waits for\n" +
			"`outbox retry` or `outbox discard`. Later rows of their keys stay pending behind them, unless\n" +
			"relay.on_poison is skip. How many rows are pending (estimated beyond 100000), the age of the oldest and\n" +
			"the number of relays are told on stderr.\n\n" +
			"A route that no queue is bound to, or that the broker does not take, is stopped: its rows stay pending,\n" +
			"and one of them is tried every few seconds, until it works. Stopped routes are told on stderr, and listed by\n" +
			"--routes; their rows by --state stopped. Such rows can be discarded.\n\n" +
			"--state pending lists the rows that are not published yet, each with what it waits for: its turn, its stopped route, or an\n" +
			"earlier message of its key that is parked or whose route is stopped. --state waiting leaves out those whose turn it is.\n" +
			"Both may read the whole outbox.",
		RunE: func(cmd *cobra.Command, _ []string) error { return l.run(cmd.Context()) },
	}
	l.filter = parkedFilter(cmd, true)
	cmd.Flags().Lookup("state").Usage = "only rows in this `state`: retry, dead, stopped, pending or waiting; default retry and dead"
	cmd.Flags().BoolVar(&l.routes, "routes", false, "list the stopped routes instead of rows")
	s.outputFlag(cmd)
	return cmd
}

// toldRoutes is how many stopped routes are told beside a list of rows.
const toldRoutes = 5

type outboxLister struct {
	session *session
	filter  *outbox.Filter
	routes  bool
}

func (l *outboxLister) run(ctx context.Context) error {
	if err := checkListed(l.filter); err != nil {
		return err
	}
	if f := l.filter; l.routes && (f.State != "" || f.Key != "" || f.Type != "") {
		return usageErrorf("", "--routes cannot be narrowed by --state, --key or --type")
	}
	db, err := l.session.database(ctx)
	if err != nil {
		return err
	}
	summary, err := outbox.Summarize(ctx, db.pool, db.schema)
	if err != nil {
		return err
	}
	l.session.note("%s", summaryText(summary))
	if l.routes {
		return l.listRoutes(ctx, db)
	}
	return l.listRows(ctx, db)
}

func (l *outboxLister) listRoutes(ctx context.Context, db *database) error {
	routes, err := outbox.ListStopped(ctx, db.pool, db.schema, l.filter.Limit)
	if err != nil {
		return err
	}
	l.session.noteLimit(len(routes), l.filter.Limit)
	return render(l.session, listing[outbox.StoppedRoute]{
		Items: routes,
		Empty: "no route is stopped",
		Name:  func(r outbox.StoppedRoute) string { return r.RoutingKey },
		Columns: []column[outbox.StoppedRoute]{
			{"EXCHANGE", func(r outbox.StoppedRoute) string { return r.Exchange }},
			{"ROUTING KEY", routingKeyText},
			{"WAITING", waitingText},
			{"SINCE", func(r outbox.StoppedRoute) string { return stampText(r.Since) }},
			{"ERROR", func(r outbox.StoppedRoute) string { return r.Error }},
		},
	})
}

func (l *outboxLister) listRows(ctx context.Context, db *database) error {
	list, empty := outbox.ListParked, "no rows are parked"
	switch l.filter.State {
	case outbox.StateStopped:
		list, empty = outbox.ListStoppedRows, "no rows of stopped routes match"
	case outbox.StatePending:
		list, empty = outbox.ListPending, "no rows are pending"
	case outbox.StateWaiting:
		list, empty = outbox.ListPending, "no rows wait for anything but their turn" // others may be pending
	}
	rows, err := list(ctx, db.pool, db.schema, *l.filter)
	if err != nil {
		return err
	}
	routes, err := outbox.ListStopped(ctx, db.pool, db.schema, toldRoutes+1)
	if err != nil {
		return err
	}
	for _, r := range routes[:min(len(routes), toldRoutes)] {
		l.session.note("stopped: exchange %q, routing key %q: %s waiting since %s: %s",
			r.Exchange, routingKeyText(r), waitingText(r), stampText(r.Since), r.Error)
	}
	if len(routes) > toldRoutes {
		l.session.note("more routes are stopped: see `surefoot outbox ls --routes`")
	}
	l.session.noteLimit(len(rows), l.filter.Limit)
	return render(l.session, parkedRows(rows, empty))
}

func routingKeyText(r outbox.StoppedRoute) string {
	if r.WholeExchange {
		return "(all)"
	}
	return r.RoutingKey
}

func waitingText(r outbox.StoppedRoute) string {
	if r.AtLeast {
		return fmt.Sprintf("at least %d", r.Waiting)
	}
	return strconv.FormatInt(r.Waiting, 10)
}

func summaryText(o outbox.Summary) string {
	about := ""
	if o.Estimated {
		about = "about "
	}
	oldest := ""
	if o.Pending > 0 {
		oldest = fmt.Sprintf(", the oldest for %s", (time.Duration(o.Oldest*1000) * time.Millisecond).Round(100*time.Millisecond))
	}
	relays := counted(int(o.Relays), "relay") + " running"
	if o.Relays == 0 {
		relays = "no relay is running: start one with `surefoot relay run`"
	}
	return fmt.Sprintf("%s%d pending%s; parked: %d retry, %d dead; %s", about, o.Pending, oldest, o.Retry, o.Dead, relays)
}

func parkedRows(rows []outbox.Parked, empty string) listing[outbox.Parked] {
	return listing[outbox.Parked]{
		Items: rows,
		Empty: empty,
		Name:  func(p outbox.Parked) string { return p.ID },
		Columns: []column[outbox.Parked]{
			{"ID", func(p outbox.Parked) string { return p.ID }},
			{"TYPE", func(p outbox.Parked) string { return p.Type }},
			{"KEY", func(p outbox.Parked) string { return p.Key }},
			{"STATE", func(p outbox.Parked) string { return p.State }},
			{"TRIES", func(p outbox.Parked) string { return strconv.Itoa(p.Attempts) }},
			{"SINCE", func(p outbox.Parked) string { return stampText(p.ParkedAt) }},
			{"NEXT TRY", func(p outbox.Parked) string { return timeText(p.NextAt) }},
			{"REASON", func(p outbox.Parked) string { return p.Reason }},
			{"ERROR", func(p outbox.Parked) string { return p.Error }},
		},
	}
}
