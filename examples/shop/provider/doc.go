// Package provider is a payment provider to practise with: a simulator over HTTP that can be told to fail, and
// the client that the shop uses.
//
// The simulator keeps three ledgers apart, so that a test can count what really happened: charges, refunds,
// and status checks. Every request carries an idempotency key; the key of a charge is the order's id. It keeps
// everything in memory, without bound: it is for tests and demonstrations.
//
//	POST /charges          Idempotency-Key: K   200 charged, 402 declined, 409 reversed before, 422 another body
//	POST /reversals/{K}    pays back what was charged under K, or sees to it that nothing ever is; idempotent
//	GET  /charges/{K}      200, or 404 when nothing is known of K
//	PUT  /admin/rules      [Rule, ...] faults from now on; GET shows them
//	GET  /admin/ledger     what happened so far
package provider

import "time"

// Fault is what the simulator does wrong.
type Fault string

const (
	// FaultUnavailable answers 503 and does nothing.
	FaultUnavailable Fault = "unavailable"
	// FaultDeclined answers 402; the decision is final for the key.
	FaultDeclined Fault = "declined"
	// FaultSlow waits Delay, then does its work, whether the client still listens or not.
	FaultSlow Fault = "slow"
	// FaultHang does its work and then does not answer for Delay.
	FaultHang Fault = "hang-after-charge"
	// FaultHangBefore does not answer for Delay and does nothing.
	FaultHangBefore Fault = "hang-before-charge"
)

// Rule makes matching charges fail. Empty conditions match everything; the first rule that matches counts.
type Rule struct {
	// Key is the idempotency key, which is the order's id.
	Key string `json:"key,omitempty"`
	// Card is the card's token.
	Card string `json:"card,omitempty"`
	// Tenant is the shop.
	Tenant string `json:"tenant,omitempty"`
	// Fault is what happens. Required.
	Fault Fault `json:"fault"`
	// Times is how often it happens to each key; 0: always.
	Times int `json:"times,omitempty"`
	// DelayMS is the time of slow and hang-... in milliseconds. Default: 60000.
	DelayMS int `json:"delayMs,omitempty"`
}

func (r Rule) delay() time.Duration {
	if r.DelayMS <= 0 {
		return time.Minute
	}
	return time.Duration(r.DelayMS) * time.Millisecond
}

// Cards that behave alike without a rule.
const (
	CardGood     = "tok_good"
	CardDeclined = "tok_declined"
)

// ChargeRequest is the body of POST /charges.
type ChargeRequest struct {
	OrderID     string `json:"orderId"`
	Tenant      string `json:"tenant"`
	AmountCents int64  `json:"amountCents"`
	Currency    string `json:"currency"`
	Card        string `json:"card"`
}

// Charge is money taken.
type Charge struct {
	ID          string `json:"chargeId"`
	Key         string `json:"key"`
	Tenant      string `json:"tenant"`
	AmountCents int64  `json:"amountCents"`
	Currency    string `json:"currency"`
}

// Reversal is the answer to POST /reversals: RefundID is empty when nothing had been charged.
type Reversal struct {
	RefundID    string `json:"refundId,omitempty"`
	ChargeID    string `json:"chargeId,omitempty"`
	Key         string `json:"key"`
	AmountCents int64  `json:"amountCents"`
}

// Ledger is what happened, in order. Requests that changed nothing are only counted.
type Ledger struct {
	Charges []Charge   `json:"charges"`
	Refunds []Reversal `json:"refunds"`
	Checks  []string   `json:"checks"`
	// ChargeRequests counts the requests to charge by key, whatever became of them.
	ChargeRequests map[string]int `json:"chargeRequests"`
}
