// Command worker is the crash harness's consumer: its handler writes one effect and emits one event per
// message, in the transaction of the inbox, and fails, hangs or dies as the message's payload says.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/fault"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/outbox"
)

// payload is what the harness enqueues.
type payload struct {
	Key string `json:"key"`
	Seq int    `json:"seq"`
	// Kind is ok, flaky (fails at the first attempts), later (asks at the first for two seconds, which no tier has), poison (fails for good until mended) or lethal (kills
	// the process until mended).
	Kind string `json:"kind"`
}

var errNotMended = errors.New("the cause is not mended yet")

type worker struct {
	schema string
	outbox *outbox.Outbox
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

// run serves one queue; its retry tier is <queue>.retry.
func run(ctx context.Context, queue string) error {
	if err := fault.Arm(os.Getenv("SUREFOOT_FAULT")); err != nil {
		return err
	}
	pool, err := pg.Open(ctx, pg.Options{URL: os.Getenv("SUREFOOT_DATABASE_URL"), Name: "crash worker", MaxConns: 12})
	if err != nil {
		return err
	}
	defer pool.Close()
	schema := os.Getenv("SUREFOOT_SCHEMA")
	box, err := outbox.New(outbox.Options{Schema: schema, Source: "crash-worker"})
	if err != nil {
		return err
	}
	w := &worker{schema: schema, outbox: box}
	c, err := consumer.New(consumer.Options{
		Queue: queue, Handler: w.handle, Pool: pool, Schema: schema, URL: os.Getenv("SUREFOOT_AMQP_URL"),
		Retry: []consumer.Tier{{Queue: queue + ".retry", Delay: 300 * time.Millisecond}}, MaxAttempts: 3,
		Drain:  3 * time.Second,
		Logger: zerolog.New(os.Stderr).With().Timestamp().Logger(),
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

func (w *worker) handle(ctx context.Context, tx pgx.Tx, m message.Message) error {
	if strings.HasPrefix(m.Type, "echo.") || strings.HasPrefix(m.Type, "order.") {
		return w.effect(ctx, tx, m, payload{Key: m.Key})
	}
	var p payload
	if err := json.Unmarshal(m.Payload, &p); err != nil {
		return consumer.Permanent(err)
	}
	if err := w.misbehave(ctx, tx, m, p); err != nil {
		return err
	}
	if err := w.effect(ctx, tx, m, p); err != nil {
		return err
	}
	echo := message.Message{ID: message.NewID(), Type: "echo.item", Key: m.Key, Payload: m.Payload}
	if _, err := w.outbox.Enqueue(ctx, tx, echo); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO `+w.schema+`.crash_emitted VALUES ($1, $2)`, echo.ID, m.ID)
	return err
}

func (w *worker) misbehave(ctx context.Context, tx pgx.Tx, m message.Message, p payload) error {
	switch p.Kind {
	case "flaky":
		if m.Attempts < 1 {
			return errors.New("not at the first attempt")
		}
	case "later":
		if m.Attempts < 1 {
			return consumer.RetryAfter(errors.New("not yet"), 2*time.Second)
		}
	case "poison", "lethal":
		var mended bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+w.schema+`.crash_mended)`).Scan(&mended); err != nil {
			return err
		}
		if !mended && p.Kind == "lethal" {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		if !mended {
			return consumer.Permanent(errNotMended)
		}
	}
	return nil
}

func (w *worker) effect(ctx context.Context, tx pgx.Tx, m message.Message, p payload) error {
	_, err := tx.Exec(ctx, `INSERT INTO `+w.schema+`.crash_effects (message_id, type, key, seq, cause) VALUES ($1, $2, $3, $4, $5)`,
		m.ID, m.Type, m.Key, p.Seq, m.CausationID)
	return err
}
