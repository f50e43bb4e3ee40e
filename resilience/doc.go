// Package resilience holds what a call to something that may fail needs. It starts with the one place
// where an error becomes a decision: [Classify].
//
// The consumer asks it whether a message is tried again, dead-lettered, or held back; the outbox and the
// relay ask it whether a row or the world around it is at fault. A handler says more about its own errors
// with [Permanent], [RetryAfter] and [Unavailable]; a program teaches the errors of its libraries with a
// [Classifier].
//
// Everything here is safe for concurrent use.
package resilience
