package console_test

import (
	"encoding/json"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/console"
)

func TestValuesAreMaskedByTheirNames(t *testing.T) {
	t.Parallel()
	patterns := []string{"*password*", "authorization", "*card*", "iban"}
	for body, want := range map[string]string{
		`{"orderId":42,"password":"x"}`:                                 `{"orderId":42,"password":"•••"}`,
		`{ "User-Password_2" : {"a":[1,2]}, "b":[{"card":7},1] }`:       `{"User-Password_2":"•••","b":[{"card":"•••"},1]}`,
		`{"\u0070assword":"x","PASSWORD":null}`:                         `{"password":"•••","PASSWORD":"•••"}`,
		`{"n":12345678901234567890.10,"authorizations":1,"libans":"y"}`: `{"n":12345678901234567890.10,"authorizations":1,"libans":"y"}`,
		`{"packed":"{\"password\":\"x\",\"a\":1}"}`:                     `{"packed":"{\"password\":\"•••\",\"a\":1}"}`,
		`{"packed":" [{\"iban\":\"DE1\"}]"}`:                            `{"packed":"[{\"iban\":\"•••\"}]"}`,
		`{"twice":1,"twice":2,"iban":1,"iban":2}`:                       `{"twice":1,"twice":2,"iban":"•••","iban":"•••"}`,
		`[{"a":1},"loose",2,true]`:                                      `[{"a":1},"•••","•••","•••"]`,
		`{"packed":"\"{\\\"password\\\":\\\"x\\\"}\""}`:                 `{"packed":"•••"}`,
		`{"cut":"{\"password\":\"x"}`:                                   `{"cut":"•••"}`,
		`{"form":"a=1&user_password=x","line":"IBAN : DE1"}`:            `{"form":"•••","line":"•••"}`,
		`{"xml":"<a><iban>DE1</iban></a>","said":"my password"}`:        `{"xml":"•••","said":"my password"}`,
		`{"base64":"eyJpYmFuIjogIkRFMSJ9","b":"aWJhbj1ERTE="}`:          `{"base64":"•••","b":"•••"}`,
		`{"paſſword":"x","PASSWORD":1}`:                                 `{"paſſword":"•••","PASSWORD":"•••"}`,
		`{"a":"<script>&\u2028"}`:                                       `{"a":"<script>&\u2028"}`,
		`{"":1,"-":2}`:                                                  `{"":1,"-":2}`,
	} {
		got, whole, err := console.Masked(body, patterns...)
		require.NoError(t, err)
		require.False(t, whole, body)
		require.Equal(t, want, got)
	}
	for _, body := range []string{
		"", "name=ann&password=x", `{"a":1`, `{"a":1}{"b":2}`, `"4111111111111111"`, "4111111111111111", `["4111111111111111"]`, "\xff", `{"a":"` + strings.Repeat("x", 1<<20) + `"}`,
		strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200),
	} {
		got, whole, err := console.Masked(body, patterns...)
		require.NoError(t, err)
		require.True(t, whole, body)
		require.Equal(t, "•••", got)
	}
	for _, everything := range []string{"", "*", "**", " - * "} {
		_, _, err := console.Masked("{}", everything)
		require.Error(t, err, everything)
	}
	require.Equal(t, "where [0=••• card!=•••]", console.FilterText(`{"where":["0=4111","card!=4111"]}`, patterns...), "what has no name is masked")
	require.Equal(t, "type a, where [orderId=1 card.number=•••]", console.FilterText(`{"type":"a","where":["orderId=1","card.number=4111"]}`, patterns...))
}

// Names that are values themselves have theirs beside them, before or after.
func TestNamesThatAreValuesAreMasked(t *testing.T) {
	t.Parallel()
	patterns := []string{"*password*", "authorization", "*card*"}
	for body, want := range map[string]string{
		`{"headers":[{"name":"Authorization","value":"Bearer x"},{"name":"Accept","value":"y"}]}`: `{"headers":[{"name":"Authorization","value":"•••"},{"name":"Accept","value":"y"}]}`,
		`{"h":[{"Value":{"deep":["x"]},"Key":"AUTHORIZATION","on":true}]}`:                        `{"h":[{"Value":"•••","Key":"AUTHORIZATION","on":true}]}`,
		`{"h":[{"k":"user-password","v":"x"},{"v":1,"k":"n"}]}`:                                   `{"h":[{"k":"user-password","v":"•••"},{"v":1,"k":"n"}]}`,
		`{"f":[{"label":"Card number","header_name":"a","value":"x","values":["x"]}]}`:            `{"f":[{"label":"Card number","header_name":"a","value":"•••","values":"•••"}]}`,
		`{"value":{"value":"a","name":"b"},"data":"x","name":"password"}`:                         `{"value":"•••","data":"•••","name":"password"}`,
		`{"outer":{"value":{"value":"x","name":"card"},"name":"b"}}`:                              `{"outer":{"value":{"value":"•••","name":"card"},"name":"b"}}`,
		`{"raw":["Host","a","Authorization","x","Password",["x"]]}`:                               `{"raw":["Host","a","Authorization","•••","Password","•••"]}`,
		`{"pairs":[["authorization","x"],["b","c"]]}`:                                             `{"pairs":[["authorization","•••"],["b","c"]]}`,
		`{"packed":"[{\"name\":\"card\",\"value\":7}]"}`:                                          `{"packed":"[{\"name\":\"card\",\"value\":\"•••\"}]"}`,
		`{"xml":"<h name=\"Authorization\" value=\"x\"/>","form":"key=card&value=x"}`:             `{"xml":"•••","form":"•••"}`,
		`{"name":"Card holder","price":3}`:                                                        `{"name":"Card holder","price":3}`,
	} {
		got, whole, err := console.Masked(body, patterns...)
		require.NoError(t, err)
		require.False(t, whole, body)
		require.Equal(t, want, got)
	}
	list := []any{amqp.Table{"name": "Authorization", "value": "Bearer x"}, amqp.Table{"name": "a", "value": "b"}}
	require.JSONEq(t, `[{"name":"Authorization","value":"•••"},{"name":"a","value":"b"}]`, console.MaskedHeader("http", list, patterns...))
	require.JSONEq(t, `{"key":"card","value":"•••"}`, console.MaskedHeader("one", amqp.Table{"key": "card", "value": []byte("x")}, patterns...))
	require.Equal(t, "•••", console.MaskedHeader("bytes", []byte("card=4111"), patterns...))
	require.Equal(t, "7", console.MaskedHeader("number", int32(7), patterns...))
	require.Equal(t, "where [h.0.value=••• a.value!=••• pairs.1=••• items.0.sku=A]", console.FilterText(`{"where":["h.0.value=x","a.value!=x","pairs.1=x","items.0.sku=A"]}`, patterns...))
}

// Whatever a body is, what has a masked name is not in what is shown, and that is JSON.
func FuzzMask(f *testing.F) {
	for _, seed := range []string{
		`{"a":1}`, `{"password":"hidden"}`, `[{"b":[{"Pass-Word":["hidden"]}]}]`, `{"p":"{\"password\":\"hidden\"}"}`, `"hidden"`,
		`[{"name":"password","value":"hidden"}]`, `{"v":["hidden"],"k":"password"}`, `["password","hidden"]`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, body string) {
		got, whole, err := console.Masked(body, "*password*")
		require.NoError(t, err)
		if whole {
			return
		}
		require.True(t, json.Valid([]byte(got)), got)
		again, _, err := console.Masked(got, "*password*")
		require.NoError(t, err)
		require.Equal(t, got, again, "nothing is left to mask")
	})
}
