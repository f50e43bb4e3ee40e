package console

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/urlfile"
)

type queuesData struct {
	Rows    []queueRow
	One     *queueRow // of the address; nil: all
	Depths  map[string]depth
	Flows   map[string]flowView
	Plot    plot
	Counted time.Time // zero: never
	Rabbit  string    // the address of RabbitMQ's console; empty: not known
}

// flowView is what a template needs of a queue's statistics.
type flowView struct {
	Unacked       int64
	In, Out, Back float64
}

func (c *Console) queuesPage(r *http.Request) (found, error) {
	f := c.known.get()
	d := queuesData{Rows: c.rows(&f), Depths: f.Broker.Value.Depths, Counted: f.Broker.At, Flows: map[string]flowView{}, Rabbit: c.rabbitURL()}
	for name, flow := range f.Flows.Value {
		d.Flows[name] = flowView{flow.Unacknowledged, flow.Stats.Publish.PerSecond, flow.Stats.Ack.PerSecond, flow.Stats.Redeliver.PerSecond}
	}
	name := strings.TrimSuffix(r.URL.Query().Get("queue"), deadletter.Suffix)
	if name == "" {
		return found{title: "Queues", data: d}, nil
	}
	for i := range d.Rows {
		if d.Rows[i].Name != name {
			continue
		}
		d.One, d.Rabbit = &d.Rows[i], c.rabbitQueue(name)
		if i < maxHistories {
			of := func(n int) func(*sample) float64 {
				return func(s *sample) float64 {
					if i >= len(s.queues) {
						return nan()
					}
					return s.queues[i][n]
				}
			}
			d.Plot = c.history.draw(time.Now(), "queue", "Messages waiting", false, short, figure{"in the queue", of(0)}, figure{"to be retried", of(1)}, figure{"dead", of(2)})
		}
		return found{title: cell(name), data: d}, nil
	}
	return found{}, &statusError{http.StatusNotFound, "there is no queue " + cell(name) + " in the configuration of this console", nil}
}

// rabbitURL is where people look at the broker: the management URL without its credentials.
func (c *Console) rabbitURL() string {
	text, err := urlfile.Resolve(c.opts.ManagementURL)
	if err != nil {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimSuffix(u.Path, "/") + "/"}).String()
}

// rabbitQueue leads to one queue in RabbitMQ's console.
func (c *Console) rabbitQueue(name string) string {
	base := c.rabbitURL()
	if base == "" {
		return ""
	}
	return base + "#/queues/" + url.PathEscape(c.management.Vhost()) + "/" + url.PathEscape(name)
}
