package fallback

import (
	"errors"

	"github.com/failsafe-go/failsafe-go/bulkhead"
	"github.com/failsafe-go/failsafe-go/circuitbreaker"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// Reasons for a pending answer.
const (
	ReasonTimeout     = "primary-timeout"
	ReasonUnavailable = "primary-unavailable"
	ReasonCircuitOpen = "circuit-open"
	ReasonOverloaded  = "overloaded"
	ReasonInterrupted = "interrupted"
)

// Pending is the honest answer about a payment whose outcome nobody here knows. It says neither paid nor failed. Answer a second
// request with the same key by this again, or by the latest status, never by another charge; send no confirmation and start no
// delivery before the payment is confirmed.
type Pending struct {
	PaymentStatus       string  `json:"paymentStatus"`
	PaymentConfirmed    bool    `json:"paymentConfirmed"`
	IsFallback          bool    `json:"isFallback"`
	Source              string  `json:"source"`
	Reason              string  `json:"reason"`
	RequiresStatusCheck bool    `json:"requiresStatusCheck"`
	RetryAdvice         string  `json:"retryAdvice"`
	IdempotencyKey      string  `json:"idempotencyKey"`
	TransactionID       *string `json:"transactionId"`
	Message             string  `json:"message"`
}

// PendingPayment returns the answer for a payment call of a source that failed with err under an idempotency key. It is false when
// the outcome is known: err is nil, or the provider has decided (a declined card); and for errors that are no call's.
func PendingPayment(err error, source, idempotencyKey string) (Pending, bool) {
	if !unknownOutcome(err) {
		return Pending{}, false
	}
	return Pending{
		PaymentStatus: "PendingConfirmation", IsFallback: true, Source: source, Reason: reasonOf(err), RequiresStatusCheck: true,
		RetryAdvice: "retry-with-same-idempotency-key", IdempotencyKey: idempotencyKey,
		Message: "The payment is not confirmed yet. Ask for its status, or send the same request with the same idempotency key; you will not be charged twice.",
	}, true
}

// unknownOutcome is true too for calls that were not made: an earlier one with the same key may have been.
func unknownOutcome(err error) bool {
	if call, ok := errors.AsType[*policy.Error](err); ok {
		return call.Effect != policy.EffectAnswered
	}
	return Allowed(err) && resilience.Classify(err) != resilience.ClassUnknown
}

func reasonOf(err error) string {
	class := resilience.Classify(err)
	switch {
	case errors.Is(err, circuitbreaker.ErrOpen):
		return ReasonCircuitOpen
	case errors.Is(err, bulkhead.ErrFull):
		return ReasonOverloaded
	case class == resilience.ClassTimeout:
		return ReasonTimeout
	case class == resilience.ClassCancelled || class == resilience.ClassShutdown:
		return ReasonInterrupted
	}
	return ReasonUnavailable
}
