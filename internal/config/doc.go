// Package config reads Surefoot's configuration: flags before SUREFOOT_* before surefoot.yaml before
// defaults.
//
// It is strict. Every fault in any source is found and returned in one [FaultsError], before any work is done:
// unknown keys (with the line and the nearest name), values of a wrong type or out of range, secrets that
// cannot be read. No fault, and no value of this package when printed, shows a password.
//
// To add a key: give the section's struct a field with a yaml tag, its default in [Default], its check in
// the section's check method, and a line in docs/surefoot.yaml, which documents every key. Each key
// outside lists and maps can also be set by the environment: relay.lease is SUREFOOT_RELAY_LEASE.
package config
