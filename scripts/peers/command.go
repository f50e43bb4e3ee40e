package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"time"
)

const usage = `usage: peers PEER prepare [-topics N]            make its tables anew in $SUREFOOT_BENCH_SCHEMA
       peers PEER fill -rows N [-bytes B] [-keys K]  insert rows m1 to mN
       peers PEER drain [-for D] [-connections N]    publish to $SUREFOOT_BENCH_EXCHANGE until all is settled

PEER is textbook, river or watermill; the services are at $SUREFOOT_DATABASE_URL and $SUREFOOT_AMQP_URL.
The flags beyond these are the tunings that were tried, each with the best value as its default:
`

// routingKey is every message's, and its type.
const routingKey = "order.created"

// peer is one design under comparison. Each command is a process of its own, so that CPU can be counted by process.
type peer interface {
	// prepare drops the peer's tables and makes them anew.
	prepare(ctx context.Context, o options) error
	// fill inserts rows in the form that the peer's own insert leaves behind.
	fill(ctx context.Context, o options) error
	// drain publishes and settles until nothing is left or o.window is over. Rows not settled then stay; none is lost.
	drain(ctx context.Context, o options) (result, error)
}

// options are the flags of all commands; each command reads its own.
type options struct {
	rows, bytes, keys int
	window            time.Duration
	connections       int

	batch, workers, clients, topics int
}

// result counts rows whose confirm has come and which the peer has settled in its own sense.
type result struct {
	Rows    int64   `json:"rows"`
	Seconds float64 `json:"seconds"` // from before the first fetch to the last settle
}

// run executes one command and returns the exit code: 0, 1 when it failed, 2 for a wrong call.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	command, o, err := parse(args, stderr)
	if err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			_, _ = fmt.Fprintf(stderr, "peers: %v\n", err)
		}
		return 2
	}
	env, err := connect(ctx, getenv, slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err == nil {
		defer env.close()
		err = execute(ctx, command, newPeer(args[0], env), o, stdout)
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "peers: %s %s: %v\n", args[0], command, err)
		return 1
	}
	return 0
}

func execute(ctx context.Context, command string, p peer, o options, stdout io.Writer) error {
	switch command {
	case "prepare":
		return p.prepare(ctx, o)
	case "fill":
		return p.fill(ctx, o)
	default:
		r, err := p.drain(ctx, o)
		if err != nil {
			return err
		}
		return json.NewEncoder(stdout).Encode(r)
	}
}

func newPeer(name string, env *environment) peer {
	switch name {
	case "textbook":
		return &textbook{env}
	case "river":
		return &riverPeer{env}
	default:
		return &watermillPeer{env}
	}
}

func parse(args []string, stderr io.Writer) (command string, o options, err error) {
	flags := flag.NewFlagSet("peers", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		_, _ = fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.IntVar(&o.rows, "rows", 0, "fill: rows to insert")
	flags.IntVar(&o.bytes, "bytes", 256, "fill: bytes of each payload")
	flags.IntVar(&o.keys, "keys", 10_000, "fill: number of keys")
	flags.DurationVar(&o.window, "for", 0, "drain: stop after this long even if rows are left; 0 means never")
	flags.IntVar(&o.connections, "connections", 4, "drain: connections to the broker")
	flags.IntVar(&o.batch, "batch", 0, "drain: rows of one claim (textbook, 2000) or one query (watermill, 1000)")
	flags.IntVar(&o.workers, "workers", 5000, "drain: River's MaxWorkers of one client")
	flags.IntVar(&o.clients, "clients", 1, "drain: River's clients")
	flags.IntVar(&o.topics, "topics", 1, "prepare: watermill's topics, over which fill spreads the keys; one subscriber each")
	if len(args) < 2 {
		flags.Usage()
		return "", o, errors.New("give a peer and a command")
	}
	if err := flags.Parse(args[2:]); err != nil {
		return "", o, err
	}
	return args[1], o, o.validate(args[0], args[1], flags.Args())
}

func (o options) validate(name, command string, rest []string) error {
	switch {
	case name != "textbook" && name != "river" && name != "watermill":
		return fmt.Errorf("there is no peer %q: textbook, river and watermill are", name)
	case command != "prepare" && command != "fill" && command != "drain":
		return fmt.Errorf("there is no command %q: prepare, fill and drain are", command)
	case len(rest) > 0:
		return fmt.Errorf("unexpected %q", rest[0])
	case command == "fill" && o.rows < 1:
		return errors.New("fill: give -rows, at least 1")
	case o.bytes < 0 || o.batch < 0 || o.window < 0:
		return errors.New("-bytes, -batch and -for cannot be negative")
	case o.keys < 1 || o.connections < 1 || o.workers < 1 || o.clients < 1 || o.topics < 1:
		return errors.New("-keys, -connections, -workers, -clients and -topics are at least 1")
	}
	return nil
}
