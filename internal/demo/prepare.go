package demo

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/topology"
)

const (
	lockSQL   = `SELECT pg_try_advisory_lock(hashtext('surefoot demo ' || $1))`
	unlockSQL = `SELECT pg_advisory_unlock(hashtext('surefoot demo ' || $1))`

	// ledgerSQL writes down what is enqueued, in the transaction that enqueues it: the outbox forgets what is published.
	ledgerSQL pg.SQL = `
CREATE TABLE @schema@.demo_enqueued (message_id text NOT NULL, type text NOT NULL);
CREATE FUNCTION @schema@.demo_enqueue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO @schema@.demo_enqueued SELECT message_id, type FROM fresh;
    RETURN NULL;
END $$;
CREATE TRIGGER demo_enqueue AFTER INSERT ON @schema@.outbox REFERENCING NEW TABLE AS fresh
    FOR EACH STATEMENT EXECUTE FUNCTION @schema@.demo_enqueue();`
)

// lock keeps two demonstrations from dropping each other's schemas.
func (d *Demo) lock(ctx context.Context, pool *pgxpool.Pool) (unlock func(), err error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("reach PostgreSQL: %w", err)
	}
	var locked bool
	if err := conn.QueryRow(ctx, lockSQL, d.o.Prefix).Scan(&locked); err != nil || !locked {
		conn.Release()
		if err == nil {
			err = errors.New("another demonstration runs in this database: wait until it has ended")
		}
		return nil, err
	}
	return func() {
		_, _ = conn.Exec(context.WithoutCancel(ctx), unlockSQL, d.o.Prefix) // the end of the connection unlocks, too
		conn.Release()
	}, nil
}

// prepare makes everything fresh.
func (d *Demo) prepare(ctx context.Context, pool *pgxpool.Pool) (_ *run, err error) {
	r := &run{Demo: d, pool: pool, spec: spec()}
	defer func() {
		if err != nil {
			r.close(ctx)
		}
	}()
	if err := r.connect(ctx); err != nil {
		return nil, err
	}
	if err := r.freshQueues(ctx); err != nil {
		return nil, err
	}
	if err := r.build(ctx); err != nil {
		return nil, err
	}
	if err := r.freshSchemas(ctx); err != nil {
		return nil, err
	}
	if r.witness, err = watch(ctx, r.conn); err != nil {
		return nil, err
	}
	d.say("prepared    schemas %s*, and in vhost %s the shop's queues: made anew, nothing else is touched", d.o.Prefix, d.o.Vhost)
	return r, nil
}

// connect opens the vhost, and makes it if it is not there.
func (r *run) connect(ctx context.Context) error {
	u, err := url.Parse(r.o.AMQPURL)
	if err != nil {
		return errors.New("the AMQP URL cannot be parsed (not shown, for it may hold a password)")
	}
	u.Path, u.RawPath = "/"+r.o.Vhost, "/"+url.PathEscape(r.o.Vhost)
	r.url = u.String()
	options := rabbit.Options{URL: r.url, TLS: r.o.TLS, Role: "demo", Host: r.o.Host, Version: r.o.Version}
	r.conn, err = rabbit.Dial(ctx, options)
	if rabbit.Code(err) != amqp.NotAllowed { // which says that there is no such vhost
		return err
	}
	m, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: r.url, URL: r.o.ManagementURL, TLS: r.o.TLS})
	if err != nil {
		return err
	}
	if err := m.CreateVhost(ctx); err != nil {
		return fmt.Errorf("the demonstration needs a vhost of its own; have an administrator create %q and give this user all permissions in it: %w", r.o.Vhost, err)
	}
	r.conn, err = rabbit.Dial(ctx, options)
	return err
}

// freshQueues deletes the queues of an earlier run and applies the topology.
func (r *run) freshQueues(ctx context.Context) error {
	names := []string{Witness}
	for name := range topology.Desired(r.spec.WithDefaults()).Queues {
		names = append(names, name)
	}
	channel, err := r.conn.Channel(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := channel.Do(ctx, "delete queue "+name, func(ch *amqp.Channel) error {
			_, err := ch.QueueDelete(name, false, false, false)
			return err
		})
		if err != nil {
			return err
		}
	}
	t, err := topology.New(topology.Options{
		Spec: r.spec, URL: r.url, ManagementURL: r.o.ManagementURL, TLS: r.o.TLS, Host: r.o.Host, Version: r.o.Version, Logger: r.o.Logger,
	})
	if err != nil {
		return err
	}
	if _, err := t.Apply(ctx, topology.ApplyOptions{}); err != nil {
		return fmt.Errorf("apply topology: %w", err)
	}
	return r.declareWitness(ctx, channel)
}

func (r *run) declareWitness(ctx context.Context, channel *rabbit.Channel) error {
	err := channel.Do(ctx, "declare "+Witness, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(Witness, true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		return err
	})
	if err != nil {
		return err
	}
	err = channel.Do(ctx, "bind "+Witness, func(ch *amqp.Channel) error { return ch.QueueBind(Witness, "#", event.Exchange, false, nil) })
	return errors.Join(err, channel.Close(ctx))
}

// freshSchemas drops the schemas of an earlier run and makes them anew.
func (r *run) freshSchemas(ctx context.Context) error {
	if err := r.shop.Drop(ctx); err != nil {
		return err
	}
	if _, err := r.pool.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{r.o.Prefix}.Sanitize()+" CASCADE"); err != nil {
		return fmt.Errorf("drop schema %s: %w", r.o.Prefix, err)
	}
	if _, err := pg.Migrate(ctx, pg.MigrateOptions{URL: r.o.DatabaseURL, Schema: r.o.Prefix}); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if _, err := r.pool.Exec(ctx, ledgerSQL.In(r.o.Prefix)); err != nil {
		return fmt.Errorf("watch the outbox: %w", err)
	}
	if err := r.shop.Migrate(ctx); err != nil {
		return err
	}
	return r.shop.Seed(ctx, r.stock)
}
