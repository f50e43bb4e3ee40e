package answer_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/answer"
	"github.com/surefoot-mq/surefoot/message"
)

func TestAnswersWithoutEvents(t *testing.T) {
	t.Parallel()
	for body, kind := range map[string]string{
		"": "application/json", " \n": "application/json", "accepted": "text/plain", `[{"events":[]}]`: "application/json",
		`{"id":5}`: "application/json", `{ not json`: "text/plain", `{"events":[]}`: "application/json", `null`: "application/json",
	} {
		events, err := answer.FromHTTP(kind, []byte(body))
		require.NoError(t, err, body)
		require.Empty(t, events, body)
	}
}

func TestEventsAreReadWhateverTheContentType(t *testing.T) {
	t.Parallel()
	events, err := answer.FromHTTP("", []byte(`{"events":[{"type":"mail.sent","key":"42","payload":{"a": 1}},{"type":"b","payload_base64":"AAE="}]}`))
	require.NoError(t, err)
	require.Equal(t, []message.Message{{Type: "mail.sent", Key: "42", Payload: []byte(`{"a": 1}`)}, {Type: "b", Payload: []byte{0, 1}}}, events)
}

func TestAnswersThatAreWrongEmitNothing(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"events":[{"type":"a","payload":1}`:                              "broken or unfinished",
		`{"events":[{"type":"a","payload":1}]} {}`:                         "something behind",
		`{"events":[],"events":[]}`:                                        "twice",
		`{"events":[],"result":"done"}`:                                    `"result" beside events`,
		`{"events":{}}`:                                                    "list of objects",
		`{"events":null}`:                                                  "list of objects",
		`{"events":[1]}`:                                                   "events[0] is not a JSON object",
		`{"events":[{"type":"a","payload":1},{"type":"b"}]}`:               "events[1] needs one of payload",
		`{"events":[{"Type":"a","payload":1}]}`:                            `events[0] has the unknown member "Type"`,
		`{"events":[{"type":"a","payload":1,"headers":{"x-attempts":1}}]}`: "events[0] ",
		`{"events":[{"payload":"secret"}]}`:                                "Type is empty",
		"{\"events\":[],\"\xff\":1}":                                       "UTF-8",
		`{"events":[` + strings.Repeat(`1,`, 1000) + `1]}`:                 "at most 1000",
		`{"events":` + strings.Repeat(`[`, 20_000):                         "nested too deep",
	} {
		events, err := answer.FromHTTP("application/json; charset=utf-8", []byte(body))
		require.ErrorContains(t, err, want, body)
		require.NotContains(t, err.Error(), "secret")
		require.Nil(t, events, body)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add("application/json", []byte(`{"events":[{"type":"a","payload":1}]}`))
	f.Add("text/plain", []byte(`{"events":`))
	f.Fuzz(func(t *testing.T, kind string, body []byte) {
		events, err := answer.FromHTTP(kind, body)
		if err != nil && events != nil {
			t.Fatal("events of a wrong answer")
		}
		for _, e := range events {
			if err := e.Validate(0); err != nil {
				t.Fatal(err)
			}
		}
	})
}
