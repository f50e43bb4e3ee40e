package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/topology"
)

// brokerVersion finds a broker that is too old.
func (v *visit) brokerVersion(context.Context) ([]Finding, error) {
	return []Finding{judgeVersion(v.conn.ServerVersion())}, nil
}

func judgeVersion(version rabbit.Version) Finding {
	switch {
	case version == (rabbit.Version{}):
		return Finding{Severity: Unknown, About: "broker", Found: "it does not tell its version", Mend: "look whether it is RabbitMQ 3.10 or newer"}
	case !version.Supported():
		return Finding{
			Severity: Critical, About: "broker", Found: "is RabbitMQ " + version.String(),
			Meaning: "it cannot dead-letter at least once: messages are lost where they should be moved", Mend: "use 3.10 or newer",
		}
	}
	return ok("broker", fmt.Sprintf("is RabbitMQ %s; bodies up to %d MiB unless it is configured otherwise", version, version.MaxMessageBytes()>>20))
}

// minFrame has room for the headers of a message, 64 KiB, and what is around them: they must fit one frame.
const minFrame = 72 << 10

// brokerLimits finds alarms, and limits that the configuration will meet.
func (v *visit) brokerLimits(ctx context.Context) ([]Finding, error) {
	alarms, err := v.management.Alarms(ctx)
	if err != nil && !errors.Is(err, rabbit.ErrManagementDenied) {
		return nil, err
	}
	var found []Finding
	if err != nil {
		found = append(found, Finding{Severity: Unknown, About: "alarms", Found: err.Error(), Mend: "rabbitmqctl set_user_tags USER monitoring"})
	}
	found = append(found, judgeAlarms(alarms)...)
	v.alarmed = len(alarms.Memory)+len(alarms.Disk) > 0
	if frame := v.conn.FrameMax(); frame > 0 && frame < minFrame {
		found = append(found, Finding{
			Severity: Warning, About: "frame_max", Found: fmt.Sprintf("is %d bytes", frame),
			Meaning: "headers with a failure record do not fit one frame, and the connection ends", Mend: "set frame_max to 131072 in rabbitmq.conf",
		})
	}
	limits, err := v.management.VhostLimits(ctx)
	if err != nil {
		return found, err
	}
	found = append(found, v.judgeVhost(limits)...)
	if len(found) == 0 {
		found = append(found, ok("broker", "no alarm, and no limit of the vhost in the way"))
	}
	return found, nil
}

func judgeAlarms(alarms rabbit.Alarms) (found []Finding) {
	for _, alarm := range []struct {
		nodes      []string
		what, mend string
	}{
		{alarms.Memory, "memory", "see what fills it (rabbitmq-diagnostics memory_breakdown), or raise vm_memory_high_watermark"},
		{alarms.Disk, "disk", "free some disk; disk_free_limit says how much must be free"},
	} {
		if len(alarm.nodes) > 0 {
			found = append(found, Finding{
				Severity: Critical, About: strings.Join(alarm.nodes, ", "), Found: "the " + alarm.what + " alarm is on",
				Meaning: "the broker takes nothing that is published: the outbox grows, and consumers cannot move messages to retry", Mend: alarm.mend,
			})
		}
	}
	return found
}

// judgeVhost compares the vhost's limits with what the configuration needs at least.
func (v *visit) judgeVhost(limits rabbit.VhostLimits) (found []Finding) {
	queues := len(topology.Desired(v.config.Topology.WithDefaults()).Queues) + v.config.Relay.Shards
	connections := v.config.Relay.Connections + 2*len(v.config.Topology.Queues)
	for _, limit := range []struct {
		name  string
		most  *int
		needs int
		why   string
	}{
		{"max-queues", limits.Queues, queues, "the queues of the topology and a fence for each shard of the relay"},
		{"max-connections", limits.Connections, connections, "the relay's, and two for each queue"},
	} {
		if limit.most != nil && *limit.most >= 0 && *limit.most < limit.needs {
			found = append(found, Finding{
				Severity: Warning, About: limit.name, Found: fmt.Sprintf("is %d, and one process needs up to %d: %s", *limit.most, limit.needs, limit.why),
				Meaning: "beyond it the broker refuses queues or connections", Mend: "rabbitmqctl set_vhost_limits -p VHOST, or clear_vhost_limits",
			})
		}
	}
	return found
}

// brokerClock compares this host's clock with that of the management API's.
func (v *visit) brokerClock(ctx context.Context) ([]Finding, error) {
	began := v.o.Now()
	at, took, err := v.management.Clock(ctx)
	if err != nil {
		return nil, err
	}
	// The header has whole seconds: half of one more or less.
	return []Finding{v.clock("broker", at.Add(halfSecond).Sub(began.Add(took/2)), took+2*halfSecond)}, nil
}
