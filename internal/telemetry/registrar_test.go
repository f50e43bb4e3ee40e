package telemetry_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

func TestSharedMetricsAreOneForAll(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	first, second := telemetry.NewRegistrar(registry), telemetry.NewRegistrar(registry)
	require.Same(t, first.Counter("things_total", "Things.", "kind"), second.Counter("things_total", "Things.", "kind"))
	require.NoError(t, second.Err())
	require.NotNil(t, second.Gauge("things_total", "Something else."))
	require.Error(t, second.Err(), "of one name, and not the same")
	require.NoError(t, first.Err())

	nowhere := telemetry.NewRegistrar(nil)
	one, other := nowhere.Counter("things_total", "Things."), nowhere.Counter("things_total", "Things.")
	require.NotSame(t, one, other)
	require.NoError(t, nowhere.Err())
}
