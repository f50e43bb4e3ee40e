// Package telemetry is how a running part is seen from outside: its logger, its readiness, its probes and
// metrics over HTTP, and its traces.
//
// Nothing here is global: a logger, a registry of metrics, a [Readiness] and a tracer are made once by the
// application and passed on. Payloads and secrets never reach any of them.
package telemetry
