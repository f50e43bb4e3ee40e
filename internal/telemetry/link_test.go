package telemetry_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

func TestTraceLink(t *testing.T) {
	t.Parallel()
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	require.Equal(t, id, telemetry.TraceID("00-"+id+"-00f067aa0ba902b7-01"))
	for _, parent := range []string{"", "a-b-c-d", "00-" + id, "00-" + id[1:] + "x\"-00f067aa0ba902b7-01", "00-../../../../../../../../../../../-1-01"} {
		require.Empty(t, telemetry.TraceID(parent), parent)
	}
	require.Equal(t, "https://traces/"+id+"?q="+id, telemetry.TraceLink("https://traces/{id}?q={id}", id))
	require.Empty(t, telemetry.TraceLink("https://traces/{id}", ""))
	require.Empty(t, telemetry.TraceLink("", id))
}
