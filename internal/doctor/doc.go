// Package doctor looks at a configuration, its database and its broker, and says what will lose messages, what will not work, and what works
// only for now: each finding with what it means and its fix.
//
// A check is one function in the file of what it looks at, and stands in the list of checks. What other packages know is asked of them: the plan
// and the paths of topology, the rights of the relay, the rules of watchdog and reconcile, the limits of deadletter. To add one, write the function,
// add its line to checks, its line to docs/doctor.md, and a test that makes it fire.
//
// Looking changes nothing that lasts: rights on the broker are tried by what leaves nothing behind, an exclusive queue that goes with the
// connection and a publish that is rolled back; the look at a dead-letter queue's head gives it back.
package doctor
