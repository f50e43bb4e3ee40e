package deadletter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/message"
)

// strange are messages that text formats like to break.
func strange() []amqp.Publishing {
	a := letter("a\xff\x00b", "order.paid", "transient", "boom \xfe")
	a.Headers["int8"], a.Headers["int16"], a.Headers["int32"], a.Headers["int64"] = int8(-8), int16(-16), int32(-32), int64(math.MaxInt64)
	a.Headers["byte"], a.Headers["f32"], a.Headers["f64"] = byte(200), float32(0.1), 0.1
	a.Headers["whole"], a.Headers["dec"], a.Headers["bytes"], a.Headers["nil"] = 3.0, amqp.Decimal{Scale: 2, Value: -314}, []byte{0, 255}, nil
	a.Headers["time"], a.Headers["bool"], a.Headers["x\xff"] = time.Unix(1_700_000_000, 0), true, "\xff\x00"
	a.Headers["list"] = []any{int32(1), "two", amqp.Table{"deep": []any{[]byte("x")}}, nil}
	a.Timestamp, a.Priority, a.ReplyTo, a.CorrelationId, a.AppId = time.Unix(1_700_000_001, 0), 7, "answers", "corr", "shop"
	a.Body = []byte{0xff, 0xfe, 0, '\n'}
	b := letter("b", "order.paid", "transient", "x")
	b.Body = []byte("{\"n\": 12345678901234567890.10,\n \"s\":\"\\u2028<>&\u2028\"}")
	c := letter("c", "order.paid", "transient", "x")
	c.Body = nil
	return []amqp.Publishing{a, b, c}
}

// requireSame compares messages but for what the broker adds.
func requireSame(t *testing.T, want []amqp.Publishing, got []amqp.Delivery) {
	t.Helper()
	require.Len(t, got, len(want))
	for i, d := range got {
		headers := message.Clean(d.Headers)
		require.Equal(t, want[i].Headers, headers)
		require.Equal(t, string(want[i].Body), string(d.Body))
		require.Equal(t, []any{want[i].MessageId, want[i].Type, want[i].CorrelationId, want[i].AppId, want[i].ReplyTo, want[i].Priority, want[i].ContentType},
			[]any{d.MessageId, d.Type, d.CorrelationId, d.AppId, d.ReplyTo, d.Priority, d.ContentType})
		require.Equal(t, want[i].Timestamp.Unix(), d.Timestamp.Unix())
	}
}

func (s *stage) discardAll() deadletter.Result {
	s.Helper()
	result, err := s.letters.Discard(s.Context(), deadletter.DiscardRequest{Common: deadletter.Common{Queue: work, Who: "ann@test", Reason: "by mistake"}})
	require.NoError(s, err)
	return result
}

func TestDiscardedMessagesAreRestoredWhole(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	want := strange()
	s.fill(dlq, want...)
	s.waitFor(dlq, 3)
	discarded := s.discardAll()
	require.Zero(t, s.count(dlq))
	r := deadletter.RestoreRequest{Queue: work, Who: "bob@test", Operation: discarded.Run, DryRun: true}
	result, err := s.letters.Restore(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, []int{3, 0, 0}, []int{result.Found, result.Done, s.count(dlq)})
	r.DryRun = false
	result, err = s.letters.Restore(t.Context(), r)
	require.NoError(t, err)
	require.Equal(t, 3, result.Done)
	requireSame(t, want, s.take(dlq))
	result, err = s.letters.Restore(t.Context(), r)
	require.NoError(t, err)
	require.Zero(t, result.Found, "once")
	require.Len(t, s.recorded("restored"), 3)

	_, err = s.letters.Restore(t.Context(), deadletter.RestoreRequest{Queue: work, Who: "bob"})
	require.ErrorIs(t, err, deadletter.ErrBadRequest)
	result, err = s.letters.Restore(t.Context(), deadletter.RestoreRequest{Queue: work, Who: "bob", Operation: uuid.New()})
	require.NoError(t, err)
	require.Zero(t, result.Found)
}

// Without its place in the archive nothing is dropped; and what was there for too long is not restored.
func TestNothingIsDroppedThatCannotBeArchived(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	letters, ids := batch("m", 20, "order.paid")
	s.fill(dlq, letters...)
	_, err := s.db.Pool.Exec(t.Context(), "ALTER TABLE "+s.db.Schema+".dlq_archive ADD CONSTRAINT no CHECK (queue = '')")
	require.NoError(t, err)
	_, err = s.letters.Discard(t.Context(), deadletter.DiscardRequest{Common: deadletter.Common{Queue: work, Who: "ann", Reason: "test"}})
	require.Error(t, err)
	require.Equal(t, 20, s.count(dlq))
	_, err = s.db.Pool.Exec(t.Context(), "ALTER TABLE "+s.db.Schema+".dlq_archive DROP CONSTRAINT no")
	require.NoError(t, err)
	discarded := s.discardAll()
	_, err = s.db.Pool.Exec(t.Context(), "UPDATE "+s.db.Schema+".dlq_archive SET at = at - interval '31 days' WHERE message_id <> $1", ids[3])
	require.NoError(t, err)
	result, err := s.letters.Restore(t.Context(), deadletter.RestoreRequest{Queue: work, Who: "bob", Operation: discarded.Run})
	require.NoError(t, err)
	require.Equal(t, 1, result.Done)
	require.Equal(t, ids[3:4], s.ids(dlq))
}

// A broker's own dead letter keeps its class, its time and its origin, which may not be published as the broker wrote them.
func TestABrokersLetterIsRestoredWithWhatWasKnownOfIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	m := letter("m", "order.paid", "", "")
	m.Headers = amqp.Table{"tenant": "acme"}
	s.fill(work, m)
	for range 3 {
		require.NoError(t, s.get().Reject(true))
	}
	s.waitFor(dlq, 1)
	before, err := s.letters.Show(t.Context(), show(1))
	require.NoError(t, err)
	s.discardAll()
	_, err = s.letters.Restore(t.Context(), deadletter.RestoreRequest{Queue: work, Who: "bob", IDs: []string{"m"}})
	require.NoError(t, err)
	after, err := s.letters.Show(t.Context(), show(1))
	require.NoError(t, err)
	require.Equal(t, []any{"delivery_limit", before[0].DiedAt.Unix(), work}, []any{after[0].ErrorClass, after[0].DiedAt.Unix(), after[0].OriginQueue})
	require.NotContains(t, after[0].Headers, "x-death")
}

func (s *stage) export() string {
	s.Helper()
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	_, err := s.letters.Export(s.Context(), deadletter.ExportRequest{
		Queue: work, Who: "ann", Write: func(r deadletter.Record) error { return encoder.Encode(r) },
	})
	require.NoError(s, err)
	return out.String()
}

func (s *stage) load(text string, change ...func(*deadletter.ImportRequest)) (deadletter.Returned, error) {
	s.Helper()
	r := deadletter.ImportRequest{Who: "bob@test", Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }}
	for _, c := range change {
		c(&r)
	}
	return s.letters.Import(s.Context(), r)
}

func TestExportAndImportKeepEveryByte(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	want := strange()
	s.fill(dlq, want...)
	text := s.export()
	require.Equal(t, 3, strings.Count(text, "\n"), "one line each")
	require.Contains(t, text, `"body":"{\"n\": 12345678901234567890.10,\n`)
	requireSame(t, want, s.take(dlq))
	result, err := s.load(text)
	require.NoError(t, err)
	require.Equal(t, []int{3, 3}, []int{result.Found, result.Done})
	require.Len(t, s.recorded("imported"), 3)
	require.Len(t, s.indexRows(), 3)
	requireSame(t, want, s.take(dlq))
}

func TestAnImportIsCheckedWhole(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.fill(dlq, letter("a", "order.paid", "x", "x"))
	good := s.export()
	for name, bad := range map[string]string{
		"no json": "no", "unknown field": `{"queue":"orders.saga","payload":1}`, "no queue": `{"properties":{},"headers":[]}`,
		"two bodies": `{"queue":"orders.saga","body":"","body_base64":""}`, "type": `{"queue":"orders.saga","headers":[{"name":"x","type":"int128","value":1}]}`,
		"range": `{"queue":"orders.saga","headers":[{"name":"x","type":"int8","value":300}]}`,
		"deep":  `{"queue":"orders.saga","headers":[` + strings.Repeat(`{"type":"list","value":[`, 50) + strings.Repeat(`]}`, 50) + `]}`,
		"long":  `{"queue":"orders.saga","properties":{"message_id":"` + strings.Repeat("x", 300) + `"}}`,
	} {
		_, err := s.load(good + bad + "\n")
		require.ErrorContains(t, err, "line 2", name)
		require.Equal(t, 1, s.count(dlq), name)
	}
	_, err := s.load(good, func(r *deadletter.ImportRequest) { r.Queue = "nowhere" })
	require.ErrorIs(t, err, deadletter.ErrNoDLQ)
	asked := map[string]int{}
	_, err = s.load(good+good, func(r *deadletter.ImportRequest) {
		r.Confirm = func(_ context.Context, counts map[string]int) error { asked = counts; return context.Canceled }
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, map[string]int{work: 2}, asked)
	require.Equal(t, 1, s.count(dlq))
	require.Empty(t, s.audit())
}

func FuzzRecord(f *testing.F) {
	f.Add(`{"queue":"q","headers":[{"name":"x","type":"decimal","value":[2,314]}],"body_base64":"AA=="}`)
	f.Fuzz(func(t *testing.T, text string) {
		var r deadletter.Record
		if json.Unmarshal([]byte(text), &r) != nil {
			return
		}
		deadletter.RoundTrip(t, r)
	})
}
