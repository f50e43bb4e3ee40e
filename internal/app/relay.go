package app

import (
	"errors"
	"time"

	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/relay"
)

// maxRelayDrain bounds how long the relay waits for confirms when it stops; its rows lose nothing by it.
const maxRelayDrain = 5 * time.Second

// errNoExchange: without an exchange, rows that name none would go to the broker's default exchange, and so straight
// into a queue that happens to be called like their type, past every binding.
var errNoExchange = errors.New("no exchange for rows that name none: set topology.exchange, or relay.exchange; " +
	"was surefoot.yaml read? (--config, SUREFOOT_CONFIG)")

func relayRole() Role {
	return Role{
		Name:       "relay",
		Configured: func(*config.Config) bool { return true },
		New: func(d Deps) (Runner, error) {
			c := d.Config.Relay
			exchange := d.Config.DefaultExchange()
			if exchange == "" {
				return nil, errNoExchange
			}
			pool, err := d.Pool("relay")
			if err != nil {
				return nil, err
			}
			return relay.New(relay.Options{
				Pool: pool, ListenURL: c.ListenSource.Reveal(), Schema: d.Schema, AMQPURL: d.AMQPURL, Exchange: exchange,
				Name: d.Host, Version: d.Version, Shards: c.Shards, Connections: c.Connections, Window: c.Window,
				WindowBytes: int(c.WindowBytes), Lease: c.Lease, ConfirmTimeout: c.ConfirmTimeout, Attempts: c.Attempts,
				Backoff: c.Backoff, OnPoison: relay.OnPoison(c.OnPoison), PollMin: c.PollMin, PollMax: c.PollMax,
				Drain: min(d.Drain, maxRelayDrain), Logger: d.Logger, Registerer: d.Registerer, Ready: d.Ready,
			})
		},
	}
}
