package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// network is a TCP proxy in front of a service, through which the network can fail. Its methods act on open connections and on
// those to come, until heal.
type network struct{ proxy *toxiproxy.Proxy }

// network listens on a free port of this machine, until the arm ends, and forwards to the host of a URL. It returns the URL that
// leads through it.
func (s *stage) network(upstream string) (*network, string, error) {
	u, err := url.Parse(upstream)
	if err != nil {
		return nil, "", errors.New("the URL of a service cannot be parsed (not shown, for it may hold a password)")
	}
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	proxy := toxiproxy.NewProxy(server, s.drill.Name, "127.0.0.1:0", u.Host)
	if err := proxy.Start(); err != nil {
		return nil, "", fmt.Errorf("start proxy: %w", err)
	}
	s.onClose(func(ctx context.Context) error {
		proxy.Stop()
		proxy.Toxics.ResetToxics(ctx)
		return nil
	})
	proxy.Lock()
	u.Host = proxy.Listen
	proxy.Unlock()
	return &network{proxy}, u.String(), nil
}

// cut closes every connection and refuses new ones.
func (n *network) cut() { n.proxy.Stop() }

// silence swallows what the service answers: requests arrive and take effect.
func (n *network) silence() error {
	return n.add("timeout", "downstream", map[string]int64{"timeout": 0})
}

// heal ends all faults.
func (n *network) heal(ctx context.Context) error {
	n.proxy.Toxics.ResetToxics(ctx)
	n.proxy.Lock()
	stopped := !n.proxy.Enabled
	n.proxy.Unlock()
	if stopped {
		return n.proxy.Start() // on the same port
	}
	return nil
}

func (n *network) add(kind, direction string, attributes map[string]int64) error {
	toxic, err := json.Marshal(map[string]any{"type": kind, "stream": direction, "attributes": attributes})
	if err != nil {
		return err
	}
	_, err = n.proxy.Toxics.AddToxicJson(strings.NewReader(string(toxic)))
	return err
}
