// Package guards holds the list of the guards that keep the promises of docs/guarantees.md, each with a test that goes red when
// it is removed. The ordinary tests check that each stands where the list says and is in the document; with the build tag
// guards (make guards) each is removed once, in a copy of the tree, and its test must fail there.
package guards
