package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/topology"
)

const (
	// routesLimit is how long the broker may take to tell what is bound: the outbox is there to do without it.
	routesLimit = 2 * time.Second
	// maxRoutes bounds what is remembered of routes.
	maxRoutes = 1000
)

// errUnroutable is a message for which no queue is bound.
var errUnroutable = errors.New("the message would wait in the outbox, and later ones of its key with it")

// route is where a message goes.
type route struct{ exchange, key string }

// addedRoutes says of messages for the outbox which would reach no queue. Nil knows nothing and says nothing.
type addedRoutes struct {
	routes   *topology.Routes
	exchange string // of messages that name none
	told     map[route]string
}

// addedRoutes asks the broker; nil when it does not tell, or where no broker is configured.
func (s *session) addedRoutes(ctx context.Context) *addedRoutes {
	c, err := s.config(need{})
	if err != nil || c.AMQP.URL == "" { // a fault is told by whatever needs the configuration
		return nil
	}
	m, err := s.management(c)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, routesLimit)
	defer cancel()
	routes, err := topology.ReadRoutes(ctx, m)
	if err != nil {
		return nil
	}
	return &addedRoutes{routes: routes, exchange: c.DefaultExchange(), told: map[route]string{}}
}

func (a *addedRoutes) check(m message.Message) error {
	if a == nil {
		return nil
	}
	to := route{cmp.Or(m.Exchange, a.exchange), m.Route()}
	if to.exchange == "" { // the relay's own configuration names one
		return nil
	}
	why, told := a.told[to]
	if !told {
		if len(a.told) == maxRoutes {
			clear(a.told)
		}
		why = a.routes.Unroutable(to.exchange, to.key)
		a.told[to] = why
	}
	if why != "" {
		return fmt.Errorf("%s: %w", why, errUnroutable)
	}
	return nil
}
