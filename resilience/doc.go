// Package resilience holds what a call to something that may fail needs. It starts with the one place
// where an error becomes a decision: [Classify].
//
// The consumer asks it whether a message is tried again, dead-lettered, or held back; the outbox and the
// relay ask it whether a row or the world around it is at fault. A handler says more about its own errors
// with [Permanent], [RetryAfter] and [Unavailable]; a program teaches the errors of its libraries with a
// [Classifier].
//
// A [Budget] is the time of one operation, in the context and over HTTP; [Settings] are the limits of calls to one dependency, which
// package policy keeps; a [Code] is what a failure is called in answers.
//
// Everything here is safe for concurrent use.
package resilience
