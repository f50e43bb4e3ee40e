package deadletter_test

import (
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/deadletter"
)

func TestWhere(t *testing.T) {
	t.Parallel()
	const body = `{"orderId":"42","n":12345678901234567890,"f":1.50,"big":1e400,"yes":true,"none":null,"empty":"","q":"say \"hi\"",
		"customer":{"city":"Köln"},"items":[{"sku":"A-1"},{"sku":"B=2"}],"twice":1,"twice":2,"-":-0.0}`
	for text, want := range map[string]bool{
		"orderId=42": true, `orderId="42"`: true, "orderId=43": false, "orderId!=43": true, "orderId=": false,
		"n=12345678901234567890": true, "n=12345678901234567891": false, "n=1.2345678901234567890e19": true, `n="12345678901234567890"`: false,
		"f=1.5": true, "f=15e-1": true, "f=1.51": false, "big=1e400": true, "big=1e401": false, "big=1e99999999999": false,
		"yes=true": true, "yes=false": false, "none=null": true, "none=": false, "empty=": true, `q=say "hi"`: true,
		"customer.city=Köln": true, "customer=x": false, "items.0.sku=A-1": true, "items.1.sku=B=2": true, "items.2.sku=A-1": false,
		"items.x=1": false, "twice=2": true, "twice=1": false, "missing=1": false, "missing!=1": true, "-=0": true,
	} {
		w, err := deadletter.ParseWhere(text)
		require.NoError(t, err, text)
		require.Equal(t, want, deadletter.Matches(w, []byte(body)), text)
	}
	for _, text := range []string{"", "x", "=1", "!=1", strings.Repeat("x", 2000) + "=1", strings.Repeat("a.", 20) + "b=1"} {
		_, err := deadletter.ParseWhere(text)
		require.ErrorIs(t, err, deadletter.ErrBadRequest, text)
	}
	w, err := deadletter.ParseWhere("a!=1")
	require.NoError(t, err)
	for _, body := range []string{"", "no json", `{"a":1}{}`, "\xff", strings.Repeat("[", 20_000)} {
		require.False(t, deadletter.Matches(w, []byte(body)), "what is not JSON meets no condition")
	}
}

func FuzzWhere(f *testing.F) {
	f.Add("a.0=1", []byte(`{"a":[1]}`))
	f.Add("n=1e5", []byte(`{"n":100000.0}`))
	f.Fuzz(func(_ *testing.T, text string, body []byte) {
		if w, err := deadletter.ParseWhere(text); err == nil {
			deadletter.Matches(w, body)
		}
	})
}

func TestRedriveByFieldAndFingerprint(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	big := letter("big", "order.paid", "transient", "order 17 not found")
	big.Body = []byte(`{"order":9007199254740993}`)
	near := letter("near", "order.paid", "transient", "order 18 not found")
	near.Body = []byte(`{"order":9007199254740992}`)
	s.fill(dlq, big, near, letter("other", "order.paid", "transient", "no route"), amqp.Publishing{MessageId: "plain", Body: []byte("text")})
	where, err := deadletter.ParseWhere("order=9007199254740993")
	require.NoError(t, err)
	letters, err := s.letters.Show(t.Context(), deadletter.ShowRequest{Queue: work, Who: "ann", Filter: deadletter.Filter{Where: []deadletter.Where{where}}})
	require.NoError(t, err)
	require.Len(t, letters, 1)
	plan, err := s.redrive(only(deadletter.Filter{Fingerprint: letters[0].Fingerprint}), func(r *deadletter.RedriveRequest) { r.DryRun = true })
	require.NoError(t, err)
	require.Equal(t, 2, plan.Done, "one cause, two numbers")
	_, err = s.redrive(only(deadletter.Filter{Fingerprint: letters[0].Fingerprint, Where: []deadletter.Where{where}}))
	require.NoError(t, err)
	require.Equal(t, []string{"big"}, s.ids(work))
	require.Equal(t, []string{"near", "other", "plain"}, s.ids(dlq))
}
