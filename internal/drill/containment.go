package drill

// contained notes what every drill of containment shows. Real charges are calls that tried to leave this machine, and what
// a simulated provider charged that no payment of the arm asked for.
func (s *stage) contained(maxConcurrency, shed, leaks, overcharged int) {
	s.observe("max_concurrency", maxConcurrency)
	s.observe("shed_count", shed)
	s.observe("active_reservation_leaks", leaks)
	s.observe("real_charges", int(s.strangers.Load())+overcharged)
}

// containment are the checks of it that are the same everywhere.
func containment(arm string) []Check {
	return expect(arm, "active_reservation_leaks", 0, "real_charges", 0)
}
