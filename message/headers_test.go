package message_test

import (
	"bufio"
	"encoding/binary"
	"io"
	"maps"
	"math"
	"net"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/message"
)

func TestIntegerFromEveryNumericTypeAndText(t *testing.T) {
	t.Parallel()
	for _, value := range []any{
		int(3), int8(3), int16(3), int32(3), int64(3), uint(3), uint8(3), uint16(3), uint32(3), uint64(3),
		float32(3), float64(3.9), "3", " 3\n", "+3", "003", []byte("3"),
		amqp.Decimal{Scale: 2, Value: 314},
	} {
		n, ok := message.Integer(value)
		require.True(t, ok, "%T %v", value, value)
		require.Equal(t, int64(3), n, "%T %v", value, value)
	}
	n, ok := message.Integer("-9223372036854775808")
	require.True(t, ok)
	require.Equal(t, int64(math.MinInt64), n)
}

func TestIntegerRefusesHalfNumbers(t *testing.T) {
	t.Parallel()
	for _, value := range []any{
		nil, true, "", " ", "5abc", "0x5", "1_000", "5.5", "five", "9223372036854775808", []byte("5abc"),
		uint64(math.MaxUint64), math.NaN(), math.Inf(1), math.Inf(-1), 1e300, float32(math.MaxFloat32),
		[]any{int64(1)},
		amqp.Table{"n": int64(1)},
		time.Now(),
		struct{}{},
	} {
		n, ok := message.Integer(value)
		require.False(t, ok, "%T %v", value, value)
		require.Zero(t, n)
	}
}

func TestAttemptsOfHostileValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		value any
		want  int
	}{
		{nil, 0},
		{int64(-5), 0},
		{"-1", 0},
		{"4abc", 0},
		{[]any{}, 0},
		{int64(4), 4},
		{uint8(4), 4},
		{"4", 4},
		{4.0, 4},
		{int64(math.MaxInt64), math.MaxInt32 - 1},
		{int64(math.MinInt64), 0},
		{math.NaN(), 0},
		{amqp.Decimal{Scale: 255, Value: 1}, 0},
	} {
		require.Equal(t, c.want, message.Attempts(amqp.Table{message.HeaderAttempts: c.value}), "%T %v", c.value, c.value)
	}
	require.Zero(t, message.Attempts(nil))
}

// The list is RabbitMQ's: docs on dead lettering, quorum queues, streams, sender-selected distribution,
// federation, shovel, MQTT, AMQP 1.0.
func TestBrokerOwnedIsComplete(t *testing.T) {
	t.Parallel()
	owned := []string{
		"x-death", "x-first-death-reason", "x-first-death-queue", "x-first-death-exchange",
		"x-last-death-reason", "x-last-death-queue", "x-last-death-exchange",
		"x-delivery-count", "x-acquired-count", "x-opt-delivery-delay", "x-opt-rabbitmq-received-time",
		"CC", "BCC", "x-delay", "x-stream-offset", "x-stream-filter", "x-stream-filter-value",
		"x-received-from", "x-shovelled", "x-shovelled-timestamp", "x-mqtt-publish-qos", "x-mqtt-dup",
		"x-amqp-1.0-properties", "x-amqp-1.0-app-properties", "x-amqp-1.0-message-annotations", "x-amqp-1.0-footer",
		"X-Death",
	}
	headers := amqp.Table{"x-tenant": "a", "cc": "someone", "x-deaths": 1, "x-attempts": int64(2), "sf-key": "k"}
	for _, name := range owned {
		require.True(t, message.BrokerOwned(name), name)
		require.True(t, message.Reserved(name), name)
		headers[name] = int64(1)
	}
	require.Equal(t, amqp.Table{"x-tenant": "a", "cc": "someone", "x-deaths": 1, "x-attempts": int64(2), "sf-key": "k"}, message.Clean(headers))
	require.Len(t, headers, len(owned)+5, "Clean works on a copy")
	require.NotNil(t, message.Clean(nil))
}

func TestReservedCoversEveryHeaderThatSurefootWrites(t *testing.T) {
	t.Parallel()
	m := message.Message{ID: "1", Type: "t", Key: "k", CausationID: "c", RequestID: "r", TraceParent: "p", TraceState: "s"}
	p, err := m.Publishing()
	require.NoError(t, err)
	message.Failure{Class: "permanent", Stack: "stack"}.Write(p.Headers, 1)
	message.SetOrigin(p.Headers, message.Origin{Exchange: "x", RoutingKey: "r", Queue: "q"})
	for name := range p.Headers {
		require.True(t, message.Reserved(name), name)
	}
	for _, name := range []string{
		message.HeaderAttempts, message.HeaderNotBefore, message.HeaderReprocess, message.HeaderRedriveCount,
		message.HeaderRedriveRun, message.HeaderOutbox, message.HeaderEpoch, message.HeaderDropped, "TraceParent", "SF-anything",
	} {
		require.True(t, message.Reserved(name), name)
	}
	require.False(t, message.Reserved("x-tenant"))
}

func TestText(t *testing.T) {
	t.Parallel()
	h := amqp.Table{"s": "a", "b": []byte("b"), "n": int64(1)}
	require.Equal(t, "a", message.Text(h, "s"))
	require.Equal(t, "b", message.Text(h, "b"))
	require.Empty(t, message.Text(h, "n"))
	require.Empty(t, message.Text(nil, "s"))
	require.True(t, message.Time(amqp.Table{"t": "yesterday"}, "t").IsZero())
}

func TestTableSizeIsWhatTheClientEncodes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		table := amqpTable(3).Draw(t, "table")
		// The client sends a table of ours, with "capabilities" added, when it opens a connection.
		encoded := encodedProperties(t, table)
		require.Equal(t, encoded, message.TableSize(table)-4)
	})
}

// amqpTable draws a table of every type that the client can encode.
func amqpTable(depth int) *rapid.Generator[amqp.Table] {
	values := []*rapid.Generator[any]{
		rapid.Just(any(nil)), rapid.Bool().AsAny(), rapid.Byte().AsAny(), rapid.Int8().AsAny(), rapid.Int16().AsAny(), rapid.Int32().AsAny(),
		rapid.Int64().AsAny(), rapid.Uint16().AsAny(), rapid.Uint32().AsAny(), rapid.Int().AsAny(), rapid.Float32().AsAny(), rapid.Float64().AsAny(),
		rapid.String().AsAny(), rapid.SliceOf(rapid.Byte()).AsAny(),
		rapid.Just(any(time.Unix(1700000000, 0))), rapid.Just(any(amqp.Decimal{Scale: 2, Value: 31})),
	}
	if depth > 0 {
		values = append(values, rapid.Deferred(func() *rapid.Generator[any] { return amqpTable(depth - 1).AsAny() }),
			rapid.Deferred(func() *rapid.Generator[any] {
				return rapid.Map(amqpTable(depth-1), func(t amqp.Table) any {
					list := make([]any, 0, len(t))
					for _, v := range t {
						list = append(list, v)
					}
					return list
				})
			}))
	}
	return rapid.Map(rapid.MapOfN(rapid.StringN(1, 20, 60), rapid.OneOf(values...), 0, 6), func(m map[string]any) amqp.Table { return m })
}

// encodedProperties returns the bytes that the client puts on the wire for a table, after its length.
func encodedProperties(t require.TestingT, table amqp.Table) int {
	client, server := net.Pipe()
	size := make(chan int, 1)
	go func() {
		defer server.Close()
		size <- readStartOK(server)
	}()
	properties := amqp.Table{"": nil} // 2 bytes; the client replaces an empty table by its own
	maps.Copy(properties, table)
	_, err := amqp.Open(client, amqp.Config{Properties: properties, SASL: []amqp.Authentication{&amqp.PlainAuth{}}})
	require.Error(t, err, "the server hangs up after start-ok")
	got := <-size
	require.Positive(t, got)
	got -= 2
	if _, own := table["capabilities"]; !own {
		// 1 + len("capabilities") + 'F' + length + 4 capabilities of 1 + len(name) + 2
		got -= 1 + 12 + 1 + 4 + 4*3 + len("connection.blocked") + len("consumer_cancel_notify") + len("basic.nack") + len("publisher_confirms")
	}
	return got
}

// readStartOK plays the server's first step and returns the length of the client's properties, or -1.
func readStartOK(conn net.Conn) int {
	in := bufio.NewReader(conn)
	if _, err := io.ReadFull(in, make([]byte, 8)); err != nil { // "AMQP" 0 0 9 1
		return -1
	}
	start := []byte{0, 10, 0, 10, 0, 9, 0, 0, 0, 0, 0, 0, 0, 5, 'P', 'L', 'A', 'I', 'N', 0, 0, 0, 5, 'e', 'n', '_', 'U', 'S'}
	frame := append([]byte{1, 0, 0}, binary.BigEndian.AppendUint32(nil, uint32(len(start)))...)
	if _, err := conn.Write(append(append(frame, start...), 0xCE)); err != nil {
		return -1
	}
	reply := make([]byte, 7+4+4) // frame header, class and method, length of the table
	if _, err := io.ReadFull(in, reply); err != nil {
		return -1
	}
	size := int(binary.BigEndian.Uint32(reply[11:]))
	rest := int(binary.BigEndian.Uint32(reply[3:7])) - 8 + 1
	if _, err := io.CopyN(io.Discard, in, int64(rest)); err != nil {
		return -1
	}
	return size
}
