package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/surefoot-mq/surefoot/topology"
)

// QueueInfo tells whose each configured queue is, so that alerts about it can say so.
func QueueInfo(spec topology.Spec) prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "surefoot_queue_info", Help: "Always 1; the labels tell the owner of a configured queue.",
	}, []string{"queue", "owner"})
	for _, q := range spec.Queues {
		info.WithLabelValues(q.Name, q.Owner).Set(1)
	}
	return info
}
