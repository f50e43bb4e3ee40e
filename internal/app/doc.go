// Package app starts the long-running roles of Surefoot, keeps them running, and stops them in order. It is
// the only place that knows every feature; the command line starts it, and so do the end-to-end tests.
//
// # One shape
//
// [Run] builds every role, which does no I/O and finds each fault of a configuration, then opens the probes, so that
// liveness answers, and waits until the
// database is there with the schema that this program knows: a service that is away at start is waited for
// with readiness saying why, never a reason to exit. A role that returns an error which will pass is started
// again with backoff; any other error stops the process.
//
// When ctx ends: readiness says draining, every role's context ends, the roles finish or return what they
// hold, and what was opened is closed last in, first out, the HTTP server last of all. All of this takes at
// most shutdown.timeout. A second signal is the business of main: it exits at once, which is as safe as a
// crash.
//
// A panic outside a handler ends the process with a fatal line and its stack and exit code 1; nothing is
// acknowledged on the way. That holds for goroutines that begin with
//
//	defer telemetry.FatalOnPanic(logger)
//
// so every goroutine of a feature does, except where it turns panics into errors itself.
//
// # To add a role
//
// Write <role>.go in this package with one function
//
//	func relayRole() Role {
//		return Role{
//			Name:       "relay",
//			Configured: func(c *config.Config) bool { return true },
//			New: func(d Deps) (Runner, error) {
//				pool, err := d.Pool("relay")
//				if err != nil {
//					return nil, err
//				}
//				return relay.New(relay.Options{
//					Pool: pool, Schema: d.Schema, AMQPURL: d.AMQPURL,
//					Logger: d.Logger, Registerer: d.Registerer, Ready: d.Ready,
//					Shards: d.Config.Relay.Shards,
//				})
//			},
//		}
//	}
//
// and add it to Roles in roles.go. New validates and does no I/O. Run blocks, returns nil when its context
// ends, may be called again after it returned an error, and calls Ready(nil) once it does its work and
// Ready(reason) whenever it cannot. Feature packages take plain values, never this package's types.
package app
