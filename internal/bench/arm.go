package bench

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// The arms that are hidden subcommands.
const (
	armPublish = "publish"
	armConsume = "consume"
	armMove    = "move"
)

// ArmOptions are what an arm's process has from its configuration.
type ArmOptions struct {
	// Name of the arm. Required.
	Name string
	// Task is its JSON. Required.
	Task io.Reader
	// Outcome takes one line of JSON. Required.
	Outcome io.Writer
	// DatabaseURL, Schema, AMQPURL and TLS as in Options.
	DatabaseURL, Schema, AMQPURL string
	TLS                          *tls.Config
	// Host and Version name this process to the broker.
	Host, Version string
}

// outcome is what a process has done.
type outcome struct {
	Rows    int     `json:"rows"`
	Seconds float64 `json:"seconds"`
	// At has, for each message by number, when its handler began, in nanoseconds since 1970.
	At map[int]int64 `json:"at,omitempty"`
}

// RunArm is the process of one arm: it reads its task, works until that is done or ctx ends, and prints its outcome.
func RunArm(ctx context.Context, o ArmOptions) error {
	run := map[string]func(context.Context, ArmOptions) (outcome, error){
		armPublish: runPublish, armConsume: runConsume, armMove: runMove,
	}[o.Name]
	if run == nil {
		return fmt.Errorf("there is no arm %q", o.Name)
	}
	done, err := run(ctx, o)
	if err != nil {
		return err
	}
	return json.NewEncoder(o.Outcome).Encode(done)
}

// task reads the arm's task.
func task[T any](o ArmOptions) (t T, err error) {
	if err := json.NewDecoder(o.Task).Decode(&t); err != nil {
		return t, fmt.Errorf("read the task of arm %s: %w", o.Name, err)
	}
	return t, nil
}

func (o ArmOptions) broker() rabbit.Options {
	return rabbit.Options{URL: o.AMQPURL, Role: "bench-" + o.Name, Host: o.Host, Version: o.Version, TLS: o.TLS}
}

// arm is the program of a hidden arm.
func (s *stage) arm(schema, name string, task any) program {
	p := s.command(schema, "bench", "arm", name)
	p.stdin = task
	return p
}
