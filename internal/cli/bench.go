package cli

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/internal/bench"
)

// benchFlags are the flags of the benchmarks.
type benchFlags struct {
	bench.Options
	held  string
	floor float64
}

func benchCommand(s *session) *cobra.Command {
	return noun("bench", "Measure this program on your services against what they can do at best",
		benchRelay(s), benchConsume(s), benchRedrive(s), benchLatency(s), benchEnqueue(s), benchWorker(s), benchArm(s))
}

// benchVerb is what all benchmarks share.
func benchVerb(s *session, kind bench.Kind, short, long string) (*cobra.Command, *benchFlags) {
	f := &benchFlags{Options: bench.Options{Kind: kind}}
	cmd := &cobra.Command{
		Use: string(kind), Short: short, Args: cobra.NoArgs,
		Long: long + "\n\nEvery figure is a ratio within one run: the arms take turns in every round, on fresh tables and queues; printed are the\n" +
			"median of the rounds, the lowest and the highest. Other load on the machine makes figures worse, so stop it first. CPU is\n" +
			"in microseconds per message, and that of services on other machines is not known (-). Schemas and queues whose names begin\n" +
			"with " + bench.DefaultNamespace + " are made anew and dropped at the end; nothing else is touched. docs/benchmarks.md has more.",
		RunE: func(cmd *cobra.Command, _ []string) error { return s.bench(cmd.Context(), f) },
	}
	flags := cmd.Flags()
	flags.IntVar(&f.Bytes, "bytes", 256, "bytes of a payload")
	flags.IntVar(&f.Rounds, "rounds", 0, "how often each arm has its turn (default 5; 8 with --held)")
	flags.Float64Var(&f.floor, "floor", 0, "fail when a ratio misses even this `share` of its goal, such as 0.5; 0 never")
	s.outputFlag(cmd)
	return cmd, f
}

func benchRelay(s *session) *cobra.Command {
	cmd, f := benchVerb(s, bench.Relay, "The relay, against a bare publisher and other designs",
		"Drain an outbox into a quorum queue with `surefoot relay run`, and publish as much with the bare client library.")
	flags := cmd.Flags()
	flags.IntVar(&f.Rows, "rows", 0, "rows of one run of an arm (default 100000; 50000 with --held)")
	flags.IntVar(&f.Keys, "keys", 10_000, "ordering keys that the rows are spread over")
	flags.IntVar(&f.Connections, "connections", 4, "connections to publish on")
	flags.DurationVar(&f.Window, "window", 0, "the longest that one run of an arm is measured (default 30s)")
	flags.StringVar(&f.Peers, "peers", "", "`path` of the built scripts/peers: adds textbook, river and watermill")
	flags.StringVar(&f.held, "held", "", "open a transaction after the first round, and compare the last round with it: `snapshot`, write or write-other-db")
	flags.IntVar(&f.Backlog, "backlog", 0, "also measure with this many `rows` waiting, filled once")
	flags.IntVar(&f.Steady, "steady", 0, "offer this many `rows` a second instead, and measure the time to delivery")
	flags.DurationVar(&f.For, "for", 0, "how long --steady lasts (default 5m)")
	return cmd
}

func benchConsume(s *session) *cobra.Command {
	cmd, f := benchVerb(s, bench.Consume, "The consumer, against a bare one",
		"Work a quorum queue off: with the inbox and one inserted row per message, and with a handler that does nothing, each\n"+
			"against a bare consumer that does the same.")
	flags := cmd.Flags()
	flags.IntVar(&f.Rows, "rows", 0, "messages of one run of an arm (default 20000); the faster arms get four or five times as many")
	flags.IntVar(&f.Prefetch, "prefetch", 100, "unacknowledged messages")
	flags.IntVar(&f.Workers, "workers", 8, "handlers at a time")
	return cmd
}

func benchRedrive(s *session) *cobra.Command {
	cmd, f := benchVerb(s, bench.Redrive, "A redrive, against a bare confirmed move",
		"Bring dead letters back with `surefoot dlq redrive`, and move as many with the bare client library, confirmed.")
	flags := cmd.Flags()
	flags.IntVar(&f.Rows, "rows", 0, "letters of one run of an arm (default 20000)")
	return cmd
}

func benchLatency(s *session) *cobra.Command {
	cmd, f := benchVerb(s, bench.Latency, "From commit to handler, against bare publish to handler",
		"Commit rows one by one at a steady rate and take the time until a consumer's handler begins; publish at the same rate\n"+
			"with the bare client library to a bare consumer.")
	flags := cmd.Flags()
	flags.IntVar(&f.Steady, "rate", 200, "messages a second")
	flags.DurationVar(&f.For, "for", 0, "how long a round lasts (default 15s)")
	return cmd
}

func benchEnqueue(s *session) *cobra.Command {
	cmd, f := benchVerb(s, bench.Enqueue, "Enqueue, against a bare INSERT and COPY",
		"Write one row with Enqueue and with a bare prepared INSERT, and 100 rows with Enqueue and with COPY, in turns; the\n"+
			"COMMIT is not timed.")
	flags := cmd.Flags()
	flags.IntVar(&f.Rows, "rows", 0, "calls of each arm in a round (default 500)")
	return cmd
}

func benchWorker(s *session) *cobra.Command {
	cmd, f := benchVerb(s, bench.Worker, "An HTTP worker, against a bare consumer that posts",
		"Work a quorum queue off with `surefoot consume run` and an HTTP target, and with a bare consumer that posts each body by net/http\n"+
			"and inserts one row, to the same endpoint.")
	flags := cmd.Flags()
	flags.IntVar(&f.Rows, "rows", 0, "messages of one run of an arm (default 10000)")
	flags.IntVar(&f.Prefetch, "prefetch", 100, "unacknowledged messages")
	flags.IntVar(&f.Workers, "workers", 8, "posts at a time")
	return cmd
}

// benchArm is the process of an arm. It is not for people.
func benchArm(s *session) *cobra.Command {
	return &cobra.Command{
		Use: "arm NAME", Short: "An arm of a benchmark, which reads its task from stdin", Args: cobra.ExactArgs(1), Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := s.config(need{database: true, amqp: true})
			if err != nil {
				return err
			}
			return bench.RunArm(cmd.Context(), bench.ArmOptions{
				Name: args[0], Task: s.env.Stdin, Outcome: s.env.Stdout, DatabaseURL: c.Database.URL.Reveal(), Schema: c.Database.Schema,
				AMQPURL: c.AMQP.URL.Reveal(), TLS: c.AMQP.TLS(), Host: s.env.Host, Version: s.build().Version,
			})
		},
	}
}

const benchHint = "`make bench` starts a local stack and sets the URLs; `scripts/stack status` tells whether one is up"

func (s *session) bench(ctx context.Context, f *benchFlags) error {
	if s.output == formatName {
		return usageErrorf("use table, json or jsonl", "a report has no names to list")
	}
	if f.floor < 0 || f.floor > 1 {
		return usageErrorf("", "--floor must be from 0 to 1")
	}
	c, err := s.config(need{database: true, amqp: true})
	if err != nil {
		return usageErrorf(benchHint, "%w", err)
	}
	o := f.Options
	if o.Binary, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	o.DatabaseURL, o.AMQPURL, o.ManagementURL = c.Database.URL.Reveal(), c.AMQP.URL.Reveal(), c.AMQP.ManagementURL.Reveal()
	o.TLS, o.CAFile, o.Environ, o.Held = c.AMQP.TLS(), c.AMQP.CAFile, s.env.Environ, bench.Held(f.held)
	o.Host, o.Version = s.env.Host, s.build().Version
	o.Say = func(line string) { s.note("%s", line) }
	b, err := bench.New(o)
	if err != nil {
		return usageErrorf("", "%w", err)
	}
	report, err := b.Run(ctx)
	if err != nil {
		return servicesFailure(err, benchHint)
	}
	if err := s.showReport(report); err != nil {
		return err
	}
	return belowFloor(report, f.floor)
}

// belowFloor fails a run whose ratios are so far off that noise cannot be the reason.
func belowFloor(r *bench.Report, floor float64) error {
	if floor == 0 {
		return nil
	}
	var missed []string
	for _, f := range r.Below(floor) {
		missed = append(missed, fmt.Sprintf("%s is %s, the goal %s", f.Name, amount(f.Median), goalText(f)))
	}
	if len(missed) == 0 {
		return nil
	}
	return fmt.Errorf("below %s of the goal: %s", strconv.FormatFloat(floor, 'g', -1, 64), strings.Join(missed, "; "))
}
