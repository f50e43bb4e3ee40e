package cli

import (
	"context"
	"strconv"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// queueRow is a queue with what the broker knows of its consumers.
type queueRow struct {
	consumer.QueueState
	// State is paused, working, no consumer, or unknown when the broker could not be asked.
	State string `json:"state"`
	// Consumers that are connected now; absent when it is not known.
	Consumers *int `json:"consumers,omitempty"`
}

func consumeLs(s *session) *cobra.Command {
	queue := ""
	cmd := &cobra.Command{
		Use: "ls", Short: "List the queues that have had consumers: working, paused by whom and why, or without a consumer", Args: cobra.NoArgs,
		Long: "List the queues that have had consumers, or are paused. Working means that at least one consumer is connected to\n" +
			"the broker now; without access to the broker the state is unknown.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			db, err := s.database(cmd.Context())
			if err != nil {
				return err
			}
			queues, err := consumer.Queues(cmd.Context(), db.pool, db.schema, queue)
			if err != nil {
				return err
			}
			s.doubtQueue(cmd.Context(), queue, len(queues))
			return render(s, consumerRows(s.queueRows(cmd.Context(), db, queues), queue))
		},
	}
	cmd.Flags().StringVar(&queue, "queue", "", "only this work `queue`")
	s.outputFlag(cmd)
	return cmd
}

// queueRows asks the broker for the consumers of each queue. What it cannot tell stays unknown, and stderr says why.
func (s *session) queueRows(ctx context.Context, db *database, queues []consumer.QueueState) []queueRow {
	rows := make([]queueRow, len(queues))
	var conn *rabbit.Conn
	if len(queues) > 0 {
		conn = s.brokerIfThere(ctx, db)
	}
	for i, q := range queues {
		rows[i] = queueRow{QueueState: q, State: "unknown"}
		if conn != nil {
			rows[i].Consumers = s.liveConsumers(ctx, conn, q.Queue)
		}
		switch n := rows[i].Consumers; {
		case q.Paused:
			rows[i].State = "paused"
		case n != nil && *n > 0:
			rows[i].State = "working"
		case n != nil:
			rows[i].State = "no consumer"
		}
	}
	return rows
}

// brokerIfThere connects for a command that can do without; nil when that is not possible.
func (s *session) brokerIfThere(ctx context.Context, db *database) *rabbit.Conn {
	c := db.config.AMQP
	if c.URL == "" {
		s.note("which consumers are connected is not known: set SUREFOOT_AMQP_URL")
		return nil
	}
	conn, err := rabbit.Dial(ctx, rabbit.Options{
		URL: c.URL.Reveal(), Role: "cli", Host: s.env.Host, Version: s.build().Version, TLS: c.TLS(),
	})
	if err != nil {
		s.note("which consumers are connected is not known: %s", err)
		return nil
	}
	s.onClose(conn.Close)
	return conn
}

// liveConsumers counts those that the broker has now; nil when it does not tell.
func (s *session) liveConsumers(ctx context.Context, conn *rabbit.Conn, queue string) *int {
	_, consumers, err := conn.Inspect(ctx, queue)
	switch {
	case rabbit.Code(err) == amqp.NotFound:
		s.note("queue %s is not on the broker: create it with `surefoot topology apply`", queue)
		return new(int)
	case err != nil:
		s.note("the consumers of %s are not known: %s", queue, err)
		return nil
	}
	return &consumers
}

func consumerRows(rows []queueRow, only string) listing[queueRow] {
	empty := "no consumer was ever started, and no queue is paused"
	if only != "" {
		empty = "no consumer of " + only + " was ever started, and it is not paused; `surefoot consume ls` lists all queues"
	}
	return listing[queueRow]{
		Items: rows,
		Empty: empty,
		Name:  func(q queueRow) string { return q.Queue },
		Columns: []column[queueRow]{
			{"QUEUE", func(q queueRow) string { return q.Queue }},
			{"STATE", func(q queueRow) string { return q.State }},
			{"CONSUMERS", func(q queueRow) string {
				if q.Consumers == nil {
					return ""
				}
				return strconv.Itoa(*q.Consumers)
			}},
			{"SINCE", func(q queueRow) string { return timeText(q.Since) }},
			{"BY", func(q queueRow) string { return q.Who }},
			{"REASON", func(q queueRow) string { return q.Reason }},
			{"LAST STARTED", func(q queueRow) string { return timeText(q.Started) }},
		},
	}
}
