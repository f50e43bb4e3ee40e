package config

import (
	"fmt"
	"strings"
)

// Fault is one thing that is wrong with the configuration.
type Fault struct {
	// Source is where the value stands: "surefoot.yaml:12", "SUREFOOT_RELAY_LEASE", "--log-level".
	Source string
	// Key is the path of the key, such as relay.lease; empty when the fault is not about one.
	Key string
	// Problem says what is wrong and, where that is not plain, what to do.
	Problem string
}

// String is the fault in one line.
func (f Fault) String() string {
	parts := make([]string, 0, 3)
	for _, part := range []string{f.Source, f.Key, f.Problem} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, ": ")
}

// FaultsError are all the faults of a configuration, in the order of its keys. It is an error.
type FaultsError []Fault

// Error lists the faults, one a line.
func (f FaultsError) Error() string {
	lines := make([]string, 0, len(f)+1)
	if len(f) == 1 {
		return "the configuration has a fault: " + f[0].String()
	}
	lines = append(lines, fmt.Sprintf("the configuration has %d faults:", len(f)))
	for _, fault := range f {
		lines = append(lines, "  "+fault.String())
	}
	return strings.Join(lines, "\n")
}
