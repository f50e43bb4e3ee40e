package deadletter_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
)

// nested is a letter with which the client library ends every connection.
func nested(id string) amqp.Publishing {
	p := letter(id, "order.paid", "x", "x")
	deep := amqp.Table{"x": "x"}
	for range 40 {
		deep = amqp.Table{"n": deep}
	}
	p.Headers["deep"] = deep
	return p
}

// One letter that cannot be received must not hide other queues, and what is before it stays usable.
func TestALetterThatCannotBeReceivedIsToldAndGoneRound(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.declare("good.dlq", amqp.Table{"x-delivery-limit": int32(1_000_000)})
	s.fill("good.dlq", letter("g", "order.paid", "x", "x"))
	d := s.deadLetters(func(o *deadletter.Options) {
		o.Queues = append(o.Queues, deadletter.Queue{Name: "aaa"}, deadletter.Queue{Name: "good"}, deadletter.Queue{Name: "zzz"})
	})
	s.fill(dlq, letter("1", "order.paid", "x", "x"), letter("2", "order.paid", "x", "x"), nested("deep"), letter("4", "order.paid", "x", "x"))

	letters, err := d.Show(t.Context(), deadletter.ShowRequest{Queue: work, Who: "ann", Limit: 2})
	require.NoError(t, err)
	require.Len(t, letters, 2)
	_, err = d.Show(t.Context(), deadletter.ShowRequest{Queue: work, Who: "ann"})
	require.ErrorIs(t, err, deadletter.ErrUndecodable)
	require.ErrorContains(t, err, "nested more than 32 deep")

	redrive := deadletter.RedriveRequest{Common: deadletter.Common{Queue: work, Who: "ann"}}
	result, err := d.Redrive(t.Context(), redrive)
	require.ErrorIs(t, err, deadletter.ErrUndecodable)
	require.GreaterOrEqual(t, result.Done, 2)
	moved := s.recorded("redriven")
	for range 2 { // the broker may have put the fourth before the bad one, as after every connection that ends
		_, err = d.Redrive(t.Context(), redrive)
		require.ErrorIs(t, err, deadletter.ErrUndecodable)
	}
	moved = s.recorded("redriven")[len(moved):]
	require.NotContains(t, moved, "1", "what was moved is not moved by every run")
	require.NotContains(t, moved, "2", "what was moved is not moved by every run")

	depths, err := d.List(t.Context(), deadletter.ListRequest{Who: "ann"})
	unseen := &deadletter.UnseenError{}
	require.ErrorAs(t, err, &unseen)
	require.Equal(t, []string{dlq}, unseen.Queues)
	notes := map[string]string{}
	for _, depth := range depths {
		notes[depth.Queue] = depth.Note
	}
	require.Len(t, notes, 4)
	require.Empty(t, notes["good"])
	require.Contains(t, notes[work], "cannot be received")
	require.True(t, strings.HasPrefix(notes["zzz"], "missing"), notes["zzz"])

	var taken []struct { // the way out that the error names
		Properties struct {
			ID string `json:"message_id"`
		}
	}
	s.broker.API(t, "POST", "/api/queues/"+s.broker.Vhost+"/"+dlq+"/get", map[string]any{"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"}, &taken)
	require.Equal(t, "deep", taken[0].Properties.ID)
	_, err = d.Redrive(t.Context(), redrive)
	require.NoError(t, err)
	require.Zero(t, s.count(dlq))
}
