package consumer

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// action is what becomes of a message.
type action uint8

const (
	actDrop      action = iota // nothing: its generation is over, or its move was given up; it comes again
	actAck                     // handled, or moved with a confirmed copy
	actReturn                  // back to the queue, uncounted
	actHold                    // kept unacknowledged, to be tried again here
	actSingly                  // the same, because its batch failed: in a transaction of its own
	actRetry                   // a counted copy goes to the retry tier
	actDead                    // a copy goes to the dead-letter queue
	actDiscarded               // rejected: the broker's own dead-lettering moves it
)

// maxDeferral bounds what RetryAfter and sf-not-before may ask for.
const maxDeferral = 24 * time.Hour

// verdict is the decision about a failure.
type verdict struct {
	action   action
	class    resilience.Class
	attempts int           // failed attempts, this one included when it counts
	delay    time.Duration // asked for by the error; 0: the ladder's next tier
	poison   bool          // dead on the first try, not for using up its attempts
}

// classOf classifies what a handler, or the consumer around it, returned under ctx.
func (o Options) classOf(ctx context.Context, err error) resilience.Class {
	if err == nil {
		return resilience.ClassNone
	}
	if class := ownClass(err); class != resilience.ClassNone {
		return class
	}
	class := resilience.ClassifyIn(ctx, o.classify(), err)
	var database *databaseError
	if errors.As(err, &database) && database.away(ctx, class) {
		return resilience.ClassUnavailable
	}
	if class.Counts() && class.Retryable() && errors.Is(context.Cause(ctx), resilience.ErrShutdown) {
		return resilience.ClassShutdown // whatever the interrupted handler made of it
	}
	return class
}

func (o Options) classify() resilience.Classifier {
	if o.Classifier == nil {
		return nil
	}
	return resilience.With(o.Classifier)
}

// away says whether a failed use of the consumer's own connection means that the database cannot be used, which
// is no fault of the message: any failure outside the handler, any broken connection under it. A server's answer
// to the handler is judged by its code, and a deadline that passed in the handler stays a timeout. Data that the server
// refuses (class 22) came with the message, wherever that happens.
func (e *databaseError) away(ctx context.Context, class resilience.Class) bool {
	switch {
	case class == resilience.ClassShutdown || class == resilience.ClassDatabaseRetry:
		return false
	case strings.HasPrefix(resilience.SQLStateOf(e.err), "22"):
		return false
	case e.early || pg.IsUnavailable(e.err):
		return true
	default:
		return ctx.Err() == nil && resilience.SQLStateOf(e.err) == "" && class != resilience.ClassPermanent
	}
}

// judge decides about a failure of a message that had failed attempts times before.
func judge(class resilience.Class, err error, attempts, maxAttempts int) verdict {
	v := verdict{class: class, attempts: attempts}
	switch class {
	case resilience.ClassShutdown:
		v.action = actReturn
		return v
	case resilience.ClassUnavailable:
		v.action = actHold
		v.delay, _ = resilience.DelayOf(err)
		return v
	case resilience.ClassPermanent, ClassMalformed, ClassUnknownType, ClassPanic, ClassNoID, ClassExpired:
		v.action, v.poison = actDead, true
		v.attempts++
		return v
	case ClassCrash:
		v.action = actDead
		return v
	case resilience.ClassNone, resilience.ClassUnknown, resilience.ClassTransient, resilience.ClassDatabaseRetry,
		resilience.ClassTimeout, resilience.ClassCancelled: // counted
	}
	v.attempts++
	v.delay, _ = resilience.DelayOf(err)
	v.delay = min(v.delay, maxDeferral)
	v.action = actRetry
	if v.attempts >= maxAttempts {
		v.action = actDead
	}
	return v
}

// patience is an error that knows how often a message is worth another try after failures like it, whatever MaxAttempts says.
type patience interface {
	error
	// GiveUp looks at the failures before this one, oldest first, and says that there should be no further try.
	GiveUp(earlier []message.Attempt) bool
}

// after ends the tries of a message early when its error says so.
func (v verdict) after(err error, j *job) verdict {
	if v.action != actRetry {
		return v
	}
	if limited, ok := errors.AsType[patience](err); ok && limited.GiveUp(failuresOf(j)) {
		v.action = actDead
	}
	return v
}

// failuresOf are those since the message was redriven, as far as its record goes back.
func failuresOf(j *job) []message.Attempt {
	log := message.FailureOf(j.delivery.Headers).Log
	return log[max(0, len(log)-j.msg.Attempts):]
}

// tierFor picks the queue of a retry: the first that waits long enough for what was asked, else the ladder's step
// for this attempt. late says that the message must be deferred again when it comes back.
func tierFor(ladder []Tier, attempts int, delay time.Duration) (tier Tier, late bool) {
	last := ladder[len(ladder)-1]
	if delay <= 0 {
		return ladder[min(max(attempts, 1), len(ladder))-1], false
	}
	for _, t := range ladder {
		if t.Delay >= delay {
			return t, false
		}
	}
	return last, true
}
