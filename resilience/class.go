package resilience

// Class says what an error means for the work that met it. Its text is stable: it is stored in failure
// records and used as a metric label.
type Class string

const (
	// ClassNone is the class of a nil error, and a Classifier's answer when it does not know an error.
	ClassNone Class = ""
	// ClassUnknown is every error that nothing else claims. It is retried like a transient one, because
	// giving up on what is not understood loses more than trying again.
	ClassUnknown Class = "unknown"
	// ClassTransient errors pass by themselves: try again later, and count the attempt.
	ClassTransient Class = "transient"
	// ClassDatabaseRetry is a deadlock or a serialisation failure: the whole transaction is run again at
	// once, a few times, before it counts as transient.
	ClassDatabaseRetry Class = "database-retry"
	// ClassTimeout is a limit of ours that ran out. The outcome of what it cut off is unknown.
	ClassTimeout Class = "timeout"
	// ClassUnavailable is a dependency known to be away (its circuit is open, the database or the broker
	// cannot be reached): wait for it, and burn no attempts meanwhile.
	ClassUnavailable Class = "unavailable"
	// ClassPermanent will fail in the same way every time: do not try again.
	ClassPermanent Class = "permanent"
	// ClassCancelled is the caller's wish that the work ends: nobody waits for an answer any more.
	ClassCancelled Class = "cancelled"
	// ClassShutdown is this process going away: the work is returned unharmed and nothing is counted.
	ClassShutdown Class = "shutdown"
)

// Retryable tells whether the same work may succeed later. A cancellation by the caller is not retryable:
// nobody asks any more.
func (c Class) Retryable() bool {
	switch c {
	case ClassNone, ClassPermanent, ClassCancelled:
		return false
	case ClassUnknown, ClassTransient, ClassDatabaseRetry, ClassTimeout, ClassUnavailable, ClassShutdown:
		return true
	}
	return true
}

// Counts tells whether a failure of this class uses up one of a message's attempts.
func (c Class) Counts() bool {
	switch c {
	case ClassNone, ClassUnavailable, ClassCancelled, ClassShutdown:
		return false
	case ClassUnknown, ClassTransient, ClassDatabaseRetry, ClassTimeout, ClassPermanent:
		return true
	}
	return true
}
