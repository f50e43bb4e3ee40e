package deadletter_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/message"
)

// A time that JSON cannot write hides neither its letter nor the others.
func TestTimesOutOfRangeAreShownWithTheRest(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	far := time.Unix(1<<60, 0)
	stamped := letter("stamped", "order.paid", "x", "x")
	stamped.Timestamp = far
	stamped.Headers["bytes"] = []byte("\x00\x01\xff?")
	died := amqp.Publishing{MessageId: "died", Timestamp: far, Headers: amqp.Table{
		"when":                   far,
		message.HeaderReprocess:  "0000-01-01T00:00:00+14:00",
		"x-death":                []any{amqp.Table{"queue": work, "reason": "rejected", "count": int64(1), "time": time.Unix(1<<45, 0)}},
		message.HeaderAttemptLog: []any{amqp.Table{"n": int64(1), "at": "9999-12-31T23:59:59-14:00"}}, message.HeaderErrorClass: "x",
	}}
	s.fill(dlq, died, stamped, letter("good", "order.paid", "x", "x"))
	letters, err := s.letters.Show(t.Context(), deadletter.ShowRequest{Queue: work, Who: "ann"})
	require.NoError(t, err)
	require.Equal(t, `\x00\x01\xff?`, strings.ReplaceAll(letters[1].Headers["bytes"].(string), "\x00\x01", `\x00\x01`), "a byte is no question mark")
	text, err := json.Marshal(letters)
	require.NoError(t, err)
	require.Contains(t, string(text), `"good"`)
	depths, err := s.letters.List(t.Context(), deadletter.ListRequest{Who: "ann"})
	require.NoError(t, err)
	_, err = json.Marshal(depths)
	require.NoError(t, err)
}
