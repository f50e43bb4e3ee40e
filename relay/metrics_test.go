package relay_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// metric returns a series' value, of a histogram its count; label is the value of its only label, "" for none.
func metric(t *testing.T, g prometheus.Gatherer, name, label string) float64 {
	t.Helper()
	families, err := g.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			of := ""
			for _, l := range m.GetLabel() {
				of = l.GetValue()
			}
			if f.GetName() == name && of == label {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	require.FailNow(t, "no such metric", name)
	return 0
}

// Few rows over eight shards are counted as well as many, and what the encoder refuses as what the broker does.
func TestEveryPublishIsCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	for n := 1; n <= 3; n++ {
		w.enqueue(msg("", n))
	}
	w.poison("k", "poison")
	o := w.options()
	registry := prometheus.NewRegistry()
	o.Registerer = registry
	w.start(o)
	w.settled(3)
	w.wait("the bad row to be dead", func() bool { return w.dead() == 1 })
	require.InDelta(t, 3, metric(t, registry, "surefoot_relay_confirm_seconds", ""), 0)
	require.InDelta(t, 3, metric(t, registry, "surefoot_relay_published_total", "confirmed"), 0)
	require.InDelta(t, 3, metric(t, registry, "surefoot_relay_published_total", "refused"), 0, "three tries")
}
