package message_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/surefoot-mq/surefoot/message"
)

func TestEveryTimeCanBeShown(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64().Draw(t, "seconds"), rapid.Int64Range(0, 1e9-1).Draw(t, "nanoseconds"))
		at = at.In(time.FixedZone("", rapid.IntRange(-26*3600, 26*3600).Draw(t, "zone")))
		text, err := json.Marshal(message.Stamp{Time: at})
		require.NoError(t, err)
		var back message.Stamp
		require.NoError(t, json.Unmarshal(text, &back))
		require.True(t, string(text) == "null" || back.Equal(at), "%s", text)
	})
	text, err := json.Marshal(struct {
		At message.Stamp `json:"at,omitzero"`
	}{})
	require.NoError(t, err)
	require.Equal(t, "{}", string(text))
}
