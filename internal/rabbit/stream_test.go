package rabbit_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// What this package makes of a delivery and what the library does is the same, whatever is in it.
func TestDecodingIsTheLibrarysOwn(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, amqp.Table{"x-queue-type": "classic"})
	other := queue(t, conn, amqp.Table{"x-queue-type": "classic"})
	ours, err := conn.Channel(t.Context())
	require.NoError(t, err)
	deliveries, err := ours.Consume(t.Context(), rabbit.ConsumeOptions{Queue: q, Prefetch: 1})
	require.NoError(t, err)
	channel, err := conn.Channel(t.Context())
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		msg := publishings(conn.User()).Draw(t, "message")
		var library amqp.Delivery
		require.NoError(t, channel.Do(t.Context(), "compare", func(ch *amqp.Channel) (err error) {
			for _, to := range []string{q, other} {
				if err = ch.Publish("", to, true, false, msg); err != nil {
					return err
				}
			}
			for ok := false; !ok && err == nil; {
				library, ok, err = ch.Get(other, true)
			}
			return err
		}))
		got := <-deliveries
		require.NoError(t, ours.Ack(got.DeliveryTag))
		require.Equal(t, q, got.RoutingKey)
		require.Equal(t, conn.Name(), got.ConsumerTag)
		d := *got
		d.DeliveryTag, library.DeliveryTag, library.Acknowledger, d.RoutingKey, library.RoutingKey, d.ConsumerTag = 0, 0, nil, "", "", ""
		require.Equal(t, library, d)
	})
}

// The library gets everything but the deliveries of one channel, which are put together, however the bytes were cut.
func TestATapTakesOutTheDeliveriesOfItsChannels(t *testing.T) {
	t.Parallel()
	msg := amqp.Publishing{MessageId: "m", Headers: amqp.Table{"n": int64(1), "text": strings.Repeat("x", 300)}, Body: bytes.Repeat([]byte("body"), 50)}
	empty := amqp.Publishing{MessageId: "empty"}
	var sent, library [][]byte
	both := func(frames ...[]byte) { sent, library = append(sent, frames...), append(library, frames...) }
	both(rabbit.ConfirmFrame(1, false, 7, false))
	sent = append(sent, rabbit.DeliveryFrames(2, 1, "a", msg, 64)...)
	both(rabbit.DeliveryFrames(3, 1, "a", msg, 64)...) // a channel of the library's
	interleaved := rabbit.DeliveryFrames(2, 2, "b", msg, 150)
	sent = append(sent, interleaved[0])
	both(frame(8, 0, nil))
	sent = append(sent, interleaved[1:]...)
	both(methodFrame(60, 71)) // get-ok, whose message is the library's
	both(rabbit.DeliveryFrames(2, 9, "c", msg, 300)[1:]...)
	sent = append(sent, rabbit.DeliveryFrames(2, 3, "b", empty, 1)...)
	both(methodFrame(60, 31)) // cancel-ok
	stream, want := bytes.Join(sent, nil), bytes.Join(library, nil)
	for size := 1; size <= len(stream); size += 1 + size/7 {
		deliveries := make(chan *amqp.Delivery, 3)
		read := rabbit.TapDeliveries(&pieces{stream, size}, 2, 4096, deliveries)
		var got []byte
		piece := make([]byte, 4096)
		for {
			n, err := read(piece)
			got = append(got, piece[:n]...)
			if err != nil {
				require.ErrorIs(t, err, io.EOF)
				break
			}
		}
		require.Equal(t, withoutBeats(want), withoutBeats(got), "pieces of %d", size)
		for tag, route := range []string{"a", "b"} {
			d := <-deliveries
			require.Equal(t, amqp.Delivery{
				DeliveryTag: uint64(tag + 1), RoutingKey: route, ConsumerTag: "consumer", Redelivered: true, MessageId: "m", Headers: msg.Headers, Body: msg.Body,
			}, *d)
		}
		require.Equal(t, amqp.Delivery{DeliveryTag: 3, RoutingKey: "b", ConsumerTag: "consumer", Redelivered: true, MessageId: "empty", Body: []byte{}}, *<-deliveries)
	}
}

// withoutBeats leaves out heartbeats, of which a tap may add some on a slow machine.
func withoutBeats(frames []byte) []byte { return bytes.ReplaceAll(frames, frame(8, 0, nil), nil) }

// What no delivery can be ends the connection, with the library's own word for it.
func TestBrokenDeliveriesEndTheConnection(t *testing.T) {
	t.Parallel()
	whole := func(msg amqp.Publishing) [][]byte { return rabbit.DeliveryFrames(1, 1, "a", msg, 1000) }
	long := func(text string) string { return string(binary.BigEndian.AppendUint32(nil, uint32(len(text)))) + text }
	headers := func(table string) []byte { // a content header without a body
		return frame(2, 1, []byte("\x00\x3c\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00"+long(table)))
	}
	deep := ""
	for range 40 {
		deep = "\x01aF" + long(deep)
	}
	body := amqp.Publishing{Body: []byte("body")}
	noEnd := bytes.Clone(whole(body)[2])
	noEnd[len(noEnd)-1] = 0
	for name, c := range map[string]struct {
		frames [][]byte
		want   error
	}{
		"nested too deep":                 {[][]byte{whole(body)[0], headers(deep)}, amqp.ErrSyntax},
		"too many entries":                {[][]byte{whole(body)[0], headers("\x01aA" + long(strings.Repeat("V", 9000)))}, amqp.ErrSyntax},
		"an unknown type":                 {[][]byte{whole(body)[0], headers("\x01aZ")}, amqp.ErrSyntax},
		"cut properties":                  {[][]byte{whole(body)[0], headers("\x09a")}, amqp.ErrSyntax},
		"a header too large":              {[][]byte{whole(body)[0], frame(2, 1, make([]byte, 20_000))}, amqp.ErrFrameTooLarge},
		"a body larger than said":         {append(whole(body)[:2], frame(3, 1, []byte("longer"))), amqp.ErrUnexpectedFrame},
		"a body before its header":        {[][]byte{whole(body)[0], whole(body)[2]}, amqp.ErrUnexpectedFrame},
		"no end":                          {append(whole(body)[:2], noEnd), amqp.ErrFrame},
		"one more than there is room for": {append(append(whole(body), whole(body)...), whole(body)...), rabbit.ErrTooMany},
	} {
		read := rabbit.TapDeliveries(&pieces{bytes.Join(c.frames, nil), 1 << 20}, 1, 16_384, make(chan *amqp.Delivery, 2))
		var err error
		for n := 1; n > 0 && err == nil; {
			n, err = read(make([]byte, 4096))
		}
		require.ErrorIs(t, err, c.want, name)
	}
}

// A broker sends no heartbeats while it sends deliveries, and the library sees none of these.
func TestDeliveriesAloneKeepAConnectionAlive(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	const beat = time.Second // the shortest; without a sign for three of them the library gives up
	conn, feed := dial(t, rabbit.Options{URL: broker.URL, Heartbeat: beat}), dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, feed, amqp.Table{"x-queue-type": "classic"})
	sub := subscribe(t, conn, rabbit.ConsumeOptions{Queue: q, Prefetch: 5})
	p := publisher(t, feed, rabbit.PublisherOptions{})
	for end := time.Now().Add(5 * beat); time.Now().Before(end); {
		require.NoError(t, p.PublishConfirmed(t.Context(), "", q, amqp.Publishing{Body: []byte("x")}))
		d := receive(t, sub)
		require.NoError(t, d.Ack(false))
	}
	require.NoError(t, conn.Err())
}

// Whatever a header frame holds, it is read within its bounds or refused.
func FuzzDecodeHeader(f *testing.F) {
	for _, msg := range []amqp.Publishing{
		{},
		{MessageId: "m", Headers: amqp.Table{"n": int64(1), "t": time.Unix(1, 0), "l": []any{nil, "x", amqp.Table{"f": 1.5}}}},
		{ContentType: "application/json", Timestamp: time.Unix(5, 0), Priority: 3, Headers: amqp.Table{"b": []byte{1}, "d": amqp.Decimal{Scale: 1, Value: 2}}},
	} {
		frames := rabbit.DeliveryFrames(1, 1, "a", msg, 10)
		f.Add(frames[1][7 : len(frames[1])-1])
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		d, err := rabbit.DecodeHeader(string(payload))
		if err != nil {
			return
		}
		if size := len(fmt.Sprint(d.Headers)); size > 200*len(payload)+1000 {
			t.Fatalf("%d bytes became %d", len(payload), size)
		}
	})
}
