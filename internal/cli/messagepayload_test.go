package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAPayloadIsCutBetweenCharacters(t *testing.T) {
	t.Parallel()
	for most, want := range map[int]string{0: "", 1: "a", 2: "a", 3: "aä", 4: "aä", 6: "aä", 7: "aä\U0001f600", 99: "aä\U0001f600"} {
		p := newPayload("outbox", []byte("aä\U0001f600"), most)
		require.Equal(t, shownPayload{Place: "outbox", Size: 7, Text: want, Encoding: "text", bytes: []byte(want)}, p, most)
	}
	require.Equal(t, "YcM=", newPayload("outbox", []byte("a\xc3("), 2).Text, "no text is shown byte for byte")
}
