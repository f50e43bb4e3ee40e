package consumer_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/message"
)

func TestMuxDecodesStrictly(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]string{
		`{"orderId":"1"}`:         "",
		` {"orderId":"1"} `:       "",
		`{"orderId":"1","new":2}`: "",
		``:                        "empty",
		`null`:                    "null",
		`{"orderId":`:             "unexpected EOF",
		`{"orderId":1}`:           "cannot unmarshal number",
		`[]`:                      "cannot unmarshal array",
		`{"orderId":"1"}{}`:       "more data",
		`{"orderId":"1"} x`:       "more data",
		`{}`:                      "orderId is missing",
		"{\"orderId\":\"\xff\"}":  "UTF-8",
	} {
		_, err := consumer.Decode[order](message.Message{Payload: []byte(payload)}, false)
		if want == "" {
			require.NoError(t, err, payload)
			continue
		}
		var malformed *consumer.MalformedError
		require.ErrorAs(t, err, &malformed, payload)
		require.ErrorContains(t, err, want, payload)
	}
	_, err := consumer.Decode[order](message.Message{Payload: []byte(`{"orderId":"1","new":2}`)}, true)
	require.ErrorContains(t, err, "unknown field")
}

// The text of a malformed payload's error goes to logs, where no payload may be.
func TestWhatIsSaidOfAMalformedPayloadQuotesNoValue(t *testing.T) {
	t.Parallel()
	type payload struct {
		Text string             `json:"text"`
		N    int32              `json:"n"`
		At   time.Time          `json:"at"`
		By   map[int]string     `json:"by"`
		Q    int64              `json:"q,string"`
		In   []struct{ N int8 } `json:"in"`
	}
	for _, text := range []string{
		`{"text":4111}`, `{"n":4111411141114111}`, `{"n":41.11}`, `{"n":"4111"}`, `{"at":"4111"}`, `{"at":4111}`, `{"by":{"x4111":""}}`, `{"q":"4111x"}`, `{"q":"x4111"}`,
		`{"in":[{"N":4111}]}`, `{"n":4111e4111}`, `[4111]`, `"4111"`, `4111`, `{"n":4111x}`, `{"4111"`,
	} {
		_, err := consumer.Decode[payload](message.Message{Payload: []byte(text)}, false)
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), "4111", text)
		require.NotContains(t, err.Error(), "41.11", text)
	}
}

func TestMuxRoutesAndMiddlewareWraps(t *testing.T) {
	t.Parallel()
	var calls []string
	note := func(name string) consumer.Middleware {
		return func(next consumer.Handler) consumer.Handler {
			return func(ctx context.Context, tx pgx.Tx, m message.Message) error {
				calls = append(calls, name)
				return next(ctx, tx, m)
			}
		}
	}
	mux := consumer.NewMux(consumer.MuxOptions{})
	consumer.On(mux, "a", func(_ context.Context, _ pgx.Tx, _ message.Message, o order) error {
		calls = append(calls, o.OrderID)
		return nil
	})
	h := consumer.Chain(mux.Serve, note("outer"), note("inner"))
	require.NoError(t, h(t.Context(), nil, message.Message{Type: "a", Payload: []byte(`{"orderId":"7"}`)}))
	require.Equal(t, []string{"outer", "inner", "7"}, calls)
	var unknown *consumer.UnknownTypeError
	require.ErrorAs(t, mux.Serve(t.Context(), nil, message.Message{Type: "b"}), &unknown)
	require.NoError(t, consumer.NewMux(consumer.MuxOptions{AckUnknown: true}).Serve(t.Context(), nil, message.Message{Type: "b"}))
	require.Panics(t, func() { mux.Handle("a", mux.Serve) })
}

func TestOptionsNameEveryFault(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), "postgres://u:p@127.0.0.1:1/d?pool_max_conns=4")
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	good := consumer.Options{
		Queue: "q", Plain: func(context.Context, message.Message) error { return nil }, Pool: pool, URL: "amqp://u:p@127.0.0.1/", Concurrency: 4,
	}
	_, err = consumer.New(good)
	require.NoError(t, err)
	_, err = consumer.New(consumer.Options{})
	for _, fault := range []string{"Queue is empty", "exactly one of Handler, Plain, Remote and Batch", "Pool is nil", "AMQP URL is empty"} {
		require.ErrorContains(t, err, fault)
	}
	for text, break_ := range map[string]func(*consumer.Options){
		"pool has fewer connections": func(o *consumer.Options) { o.Concurrency = 5 },
		"Concurrency is 20":          func(o *consumer.Options) { o.Concurrency = 20 },
		"takes unacknowledged ones back after 30m": func(o *consumer.Options) {
			o.Timeout, o.Concurrency = 10*time.Minute, 1
		},
		"shortest delay first": func(o *consumer.Options) { o.Retry = []consumer.Tier{{Queue: "b", Delay: 2}, {Queue: "a", Delay: 1}} },
		"needed":               func(o *consumer.Options) { o.Retry = []consumer.Tier{{Queue: "", Delay: 1}} },
		"at least one retry":   func(o *consumer.Options) { o.Retry = []consumer.Tier{} },
		"Ordering":             func(o *consumer.Options) { o.Ordering = "strict" },
		"PausePoll":            func(o *consumer.Options) { o.PausePoll = time.Minute },
		"MaxAttempts":          func(o *consumer.Options) { o.MaxAttempts = -1 },
		"schema":               func(o *consumer.Options) { o.Schema = "x; drop" },
	} {
		o := good
		break_(&o)
		_, err := consumer.New(o)
		require.ErrorContains(t, err, text)
	}
}
