package rabbit

import "context"

// flowQuery asks for these alone: all statistics of a queue are some kilobytes.
const flowQuery = "?columns=name,messages_ready,messages_unacknowledged,consumers,message_stats.publish_details.rate,message_stats.ack_details.rate," +
	"message_stats.deliver_get_details.rate,message_stats.redeliver_details.rate,message_stats.publish,message_stats.ack"

// Flow is what passes through a queue, by the broker's statistics: up to 5 s old, rates in messages a second over the last seconds.
type Flow struct {
	Name           string `json:"name"`
	Ready          int64  `json:"messages_ready"`
	Unacknowledged int64  `json:"messages_unacknowledged"`
	Consumers      int64  `json:"consumers"`
	Stats          struct {
		Publish   rate `json:"publish_details"`
		Ack       rate `json:"ack_details"`
		Deliver   rate `json:"deliver_get_details"`
		Redeliver rate `json:"redeliver_details"`
		// Published and Acked count since the broker began to.
		Published int64 `json:"publish"`
		Acked     int64 `json:"ack"`
	} `json:"message_stats"`
}

type rate struct {
	PerSecond float64 `json:"rate"`
}

// Flows returns what passes through the queues of the vhost. A broker that collects no statistics answers with zeros.
func (m *Management) Flows(ctx context.Context) ([]Flow, error) {
	return queuePages[Flow](ctx, m, flowQuery)
}
