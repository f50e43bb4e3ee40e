package rabbit_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]rabbit.Version{
		"3.10.8":        {Major: 3, Minor: 10, Patch: 8},
		"4.0.5":         {Major: 4, Minor: 0, Patch: 5},
		"4.3.0-rc.1":    {Major: 4, Minor: 3},
		"4.2":           {Major: 4, Minor: 2},
		"3.13.7+debian": {Major: 3, Minor: 13, Patch: 7},
		"":              {},
		"x.y":           {},
		"4.-1":          {},
	} {
		require.Equal(t, want, rabbit.ParseVersion(text), text)
	}
	require.Equal(t, "3.10.8", rabbit.ParseVersion("3.10.8").String())
	require.Equal(t, "unknown", rabbit.Version{}.String())
}

func TestWhatVersionsDo(t *testing.T) {
	t.Parallel()
	v := rabbit.ParseVersion
	require.False(t, v("3.9.29").Supported())
	require.True(t, v("3.10.0").Supported())
	require.True(t, v("4.0.0").Supported())
	require.Equal(t, 128<<20, v("3.13.7").MaxMessageBytes())
	require.Equal(t, 16<<20, v("4.0.0").MaxMessageBytes())
}
