package telemetry

import "time"

// remindEvery is how often a fault that lasts is told again.
const remindEvery = time.Minute

// Reminder decides when a fault that is met again and again is worth another line in the log: when its reason has
// changed, and once a minute while it lasts. The zero value is ready; for one goroutine.
type Reminder struct {
	reason string
	at     time.Time
}

// Due says whether to tell the reason now, and takes it as told if so.
func (r *Reminder) Due(reason string, now time.Time) bool {
	if reason == r.reason && now.Sub(r.at) < remindEvery {
		return false
	}
	r.reason, r.at = reason, now
	return true
}

// Over forgets the fault, and says whether it was told.
func (r *Reminder) Over() (told bool) {
	told = !r.at.IsZero()
	*r = Reminder{}
	return told
}
