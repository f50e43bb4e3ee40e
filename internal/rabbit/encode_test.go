package rabbit_test

import (
	"bytes"
	"io"
	"math"
	"slices"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

var (
	shortText = rapid.StringN(0, 60, 255)
	names     = rapid.StringMatching(`[a-z\x00é"<-]{1,20}`)
)

// values of every type that the library can carry, nested to a depth.
func values(depth int) *rapid.Generator[any] {
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Byte().AsAny(), rapid.Int8().AsAny(), rapid.Int16().AsAny(), rapid.Uint16().AsAny(),
		rapid.Int32().AsAny(), rapid.Uint32().AsAny(), rapid.Int64().AsAny(), rapid.Float32Range(-1e9, 1e9).AsAny(), rapid.Float64Range(-1e9, 1e9).AsAny(),
		rapid.IntRange(math.MinInt32, math.MaxInt32).AsAny(), rapid.StringN(0, 30, 300).AsAny(), rapid.SliceOfN(rapid.Byte(), 0, 50).AsAny(),
		rapid.Custom(func(t *rapid.T) any {
			return amqp.Decimal{Scale: rapid.Byte().Draw(t, "scale"), Value: rapid.Int32().Draw(t, "value")}
		}),
		rapid.Custom(func(t *rapid.T) any { return time.Unix(rapid.Int64Range(0, 1<<40).Draw(t, "time"), 0) }),
	}
	if depth > 0 {
		kinds = append(kinds,
			rapid.Custom(func(t *rapid.T) any { return tables(depth-1).Draw(t, "table") }),
			rapid.Custom(func(t *rapid.T) any { return rapid.SliceOfN(values(depth-1), 0, 3).Draw(t, "array") }))
	}
	return rapid.OneOf(kinds...)
}

func tables(depth int) *rapid.Generator[amqp.Table] {
	return rapid.Custom(func(t *rapid.T) amqp.Table {
		return rapid.MapOfN(names, values(depth), 0, 4).Draw(t, "entries")
	})
}

// publishings have any properties that a broker takes from a user.
func publishings(user string) *rapid.Generator[amqp.Publishing] {
	return rapid.Custom(func(t *rapid.T) amqp.Publishing {
		msg := amqp.Publishing{
			Headers: tables(2).Draw(t, "headers"), ContentType: shortText.Draw(t, "content type"), ContentEncoding: shortText.Draw(t, "encoding"),
			DeliveryMode: rapid.SampledFrom([]uint8{0, 1, 2}).Draw(t, "mode"), Priority: rapid.Byte().Draw(t, "priority"),
			CorrelationId: shortText.Draw(t, "correlation"), ReplyTo: shortText.Draw(t, "reply-to"), MessageId: shortText.Draw(t, "id"),
			Type: shortText.Draw(t, "type"), AppId: shortText.Draw(t, "app"), Body: rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "body"),
			UserId:     rapid.SampledFrom([]string{"", user}).Draw(t, "user"),
			Expiration: rapid.SampledFrom([]string{"", "86400000"}).Draw(t, "expiration"),
		}
		if rapid.Bool().Draw(t, "with a time") {
			msg.Timestamp = time.Unix(rapid.Int64Range(1, 1<<40).Draw(t, "timestamp"), 0)
		}
		return msg
	})
}

// What this package encodes and what the library does is the same to a consumer, whatever is in it.
func TestEncodingIsTheLibrarysOwn(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, amqp.Table{"x-queue-type": "classic"})
	p := publisher(t, conn, rabbit.PublisherOptions{})
	channel, err := conn.Channel(t.Context())
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		msg := publishings(conn.User()).Draw(t, "message")
		require.NoError(t, p.PublishConfirmed(t.Context(), "", q, msg))
		var ours, library amqp.Delivery
		require.NoError(t, channel.Do(t.Context(), "compare", func(ch *amqp.Channel) (err error) {
			if ours, _, err = ch.Get(q, true); err != nil {
				return err
			}
			if err = ch.Publish("", q, true, false, msg); err != nil {
				return err
			}
			for ok := false; !ok && err == nil; {
				library, ok, err = ch.Get(q, true)
			}
			return err
		}))
		ours.DeliveryTag, library.DeliveryTag, ours.Acknowledger, library.Acknowledger = 0, 0, nil, nil
		require.Equal(t, library, ours)
	})
}

// A body larger than a frame goes in several, and a large message of the library's beside it is not torn.
func TestLargeBodiesGoInSeveralFrames(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	conn := dial(t, rabbit.Options{URL: broker.URL})
	q := queue(t, conn, amqp.Table{"x-queue-type": "classic"})
	p := publisher(t, conn, rabbit.PublisherOptions{})
	channel, err := conn.Channel(t.Context())
	require.NoError(t, err)
	sizes := []int{0, 1, 4095, 4096, conn.FrameMax() - 9, conn.FrameMax() - 8, conn.FrameMax() - 7, 3*conn.FrameMax() + 1}
	for i, size := range sizes {
		body := bytes.Repeat([]byte{byte(i + 1)}, size)
		require.NoError(t, p.Publish(t.Context(), "", q, amqp.Publishing{Body: body}, i))
		require.NoError(t, channel.Do(t.Context(), "publish", func(ch *amqp.Channel) error {
			return ch.Publish("", q, true, false, amqp.Publishing{Body: body})
		}))
	}
	collect(t, p, len(sizes))
	var got []int
	require.NoError(t, channel.Do(t.Context(), "get", func(ch *amqp.Channel) error {
		for len(got) < 2*len(sizes) {
			d, ok, err := ch.Get(q, true)
			if err != nil {
				return err
			}
			if ok {
				require.Empty(t, bytes.Trim(d.Body, string(d.Body[:min(1, len(d.Body))])), "of one kind of byte")
				got = append(got, len(d.Body))
			}
		}
		return nil
	}))
	slices.Sort(got)
	require.Equal(t, slices.Sorted(slices.Values(append(sizes, sizes...))), got)
}

// A tap tells nothing that it has read before the library asks for more, and then all of it, however the bytes were cut.
func TestATapTellsWhenTheLibraryAsksForMore(t *testing.T) {
	t.Parallel()
	var stream []byte
	stream = append(stream, rabbit.ConfirmFrame(1, false, 7, false)...)
	stream = append(stream, frame(3, 1, bytes.Repeat([]byte{0xCE}, 40))...) // no method
	stream = append(stream, methodFrame(60, 50)...)                         // basic.return
	stream = append(stream, rabbit.ConfirmFrame(1, true, 9, true)...)
	stream = append(stream, rabbit.ConfirmFrame(2, false, 1, true)...) // nobody listens there
	stream = append(stream, methodFrame(20, 40)...)                    // channel.close
	stream = append(stream, rabbit.ConfirmFrame(1, false, 10, true)...)
	want := []string{"ack 7 false", "returned", "nack 9 true", "ended"}
	for size := 1; size <= len(stream); size++ {
		var told []string
		var got []byte
		read := rabbit.Tap(&pieces{stream, size}, 1, &told)
		piece := make([]byte, len(stream))
		for {
			n, err := read(piece)
			got = append(got, piece[:n]...)
			if err != nil {
				break
			}
			if size == len(stream) {
				require.Empty(t, told, "the library has not asked for more")
			}
		}
		require.Equal(t, stream, got)
		require.Equal(t, want, told, "pieces of %d", size)
	}
	var told []string
	read := rabbit.Tap(&pieces{stream[:len(rabbit.ConfirmFrame(1, false, 7, false))], 1000}, 1, &told)
	_, err := read(make([]byte, 1000))
	require.NoError(t, err)
	_, err = read(make([]byte, 1000))
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, []string{"ack 7 false", "ended"}, told)
}

// pieces reads in pieces of a size.
type pieces struct {
	rest []byte
	size int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, p.rest[:min(p.size, len(p.rest))])
	p.rest = p.rest[n:]
	return n, nil
}
