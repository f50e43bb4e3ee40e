package relay

// pendingRow is where a row of the outbox would go.
type pendingRow struct {
	route routeName
	id    int64
}

// withdrawal is the answer to a wish to discard a row that is pending.
type withdrawal int

const (
	withdrawn withdrawal = iota // withheld from now on, until endWithdrawal
	onItsWay                    // published or about to be; ask again
	wanted                      // its route works: it will be published
)

// withdraw takes a row that waits for a stopped route out of memory, so that it can be deleted without being published
// meanwhile: until endWithdrawal nobody takes it, nor, under its key's order, a later row of its key. The key (without one, the
// row) lags, so whatever becomes of the deletion, the second lane finds what is there.
func (s *lanes) withdraw(p pendingRow) withdrawal {
	r := s.rows[p.id]
	switch {
	case s.routeOpen(p.route):
		return wanted
	case r == nil:
	case r.place != placeWaiting:
		return onItsWay
	case r.unit != nil:
		s.dropQueue(r.unit)
	default:
		s.dropStalled(r)
	}
	s.withheld[p.id] = struct{}{}
	return withdrawn
}

// routeOpen reports whether nothing is known against a route, which need not be in memory.
func (s *lanes) routeOpen(name routeName) bool {
	if name.exchange == "" {
		name.exchange = s.exchange
	}
	if t := s.routes[name]; t != nil {
		return t.open()
	}
	g := s.gates[name.exchange]
	return g == nil || !g.stopped
}

// dropStalled forgets a row without a key that waits for its route.
func (s *lanes) dropStalled(r *row) {
	r.route.stalled.remove(r)
	s.stalled--
	s.waiting--
	s.waitingBytes -= r.size()
	delete(s.rows, r.id)
	s.lagLoose(r.id, true)
	s.releaseRoute(r.route)
}

// endWithdrawal ends what withdraw began. With gone set the row is deleted; reads that are under way may still return it.
func (s *lanes) endWithdrawal(id int64, gone bool) {
	delete(s.withheld, id)
	if gone {
		for i := range s.ghosts {
			s.ghosts[i].add(id)
		}
	}
	s.rearm()
}

func (s *lanes) isWithheld(id int64) bool {
	_, yes := s.withheld[id]
	return yes
}
