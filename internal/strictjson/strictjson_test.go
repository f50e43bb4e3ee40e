package strictjson_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/strictjson"
)

func TestMembersAreLeftAsTheyAre(t *testing.T) {
	t.Parallel()
	members, err := strictjson.Members([]byte(` {"a": 1.50, "A":[ 1 ], "":null} `))
	require.NoError(t, err)
	require.Equal(t, map[string]json.RawMessage{"a": json.RawMessage("1.50"), "A": json.RawMessage("[ 1 ]"), "": json.RawMessage("null")}, members)
}

func TestWhatIsWrongIsNamedAndNotQuoted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`[]`: "not a JSON object", ``: "not a JSON object", "{\"a\":\"\xff\"}": "not valid UTF-8",
		`{"a":1,"a":2}`: `the member "a" twice`, `{"a":1,"\u0061":2}`: `the member "a" twice`,
		`{"a":secret}`: "broken JSON near byte", `{"a":1`: "broken or unfinished", `{"a":1} {}`: "something behind", `{"a":1}}`: "something behind",
		`{"a":` + strings.Repeat("[", 20_000): "nested too deep",
	} {
		_, err := strictjson.Members([]byte(text))
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "secret")
	}
	_, err := strictjson.Members([]byte(`{"` + strings.Repeat("a", 100) + `":1,"` + strings.Repeat("a", 100) + `":1}`))
	var twice *strictjson.TwiceError
	require.ErrorAs(t, err, &twice)
	require.Less(t, len(err.Error()), 100)
}
