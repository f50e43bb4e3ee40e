package resilience

import (
	"cmp"
	"fmt"
	"strings"
	"time"
)

// Settings are the limits of calls to one dependency, from the configuration (section dependencies) or from Go. The zero value
// is all defaults. docs/resilience.md says when to use which, and why the defaults are what they are.
type Settings struct {
	// Deadline is the longest that a call takes: its turn, attempts and waits. The smaller of it and what the context has left
	// wins. Default: what the attempts and the longest waits take together.
	Deadline time.Duration `yaml:"deadline" json:"deadline"`
	// Timeout of one attempt. Default: 2s.
	Timeout time.Duration `yaml:"timeout" json:"timeout"`
	// Retry says how failures that pass are tried again.
	Retry Retry `yaml:"retry" json:"retry"`
	// Breaker says when calls are refused because they would fail.
	Breaker Breaker `yaml:"breaker" json:"breaker"`
	// Bulkhead says how many calls run at a time.
	Bulkhead Bulkhead `yaml:"bulkhead" json:"bulkhead"`
}

// Retry says how often and how fast. The wait before attempt n+1 is a random time up to Base times 2 to the power of n-1, at most
// Max (full jitter), after what the dependency asked for by Retry-After.
type Retry struct {
	// Attempts, the first included; 1 never retries. Default: 3.
	Attempts int `yaml:"attempts" json:"attempts"`
	// Base of the longest wait before the second attempt. Default: 100ms.
	Base time.Duration `yaml:"base" json:"base"`
	// Max is the longest wait without Retry-After. Default: 2s, or Base where that is more.
	Max time.Duration `yaml:"max" json:"max"`
}

// Breaker says when the circuit opens and closes. A call counts once, however many attempts it made.
type Breaker struct {
	// Failures within Window open it. Default: 5.
	Failures int `yaml:"failures" json:"failures"`
	// Window in which they are counted. Default: 10s. Not used with Consecutive.
	Window time.Duration `yaml:"window" json:"window"`
	// Consecutive counts failures in a row instead, however far apart. Default: false.
	Consecutive bool `yaml:"consecutive" json:"consecutive"`
	// Open is how long no call is let through. Default: 30s.
	Open time.Duration `yaml:"open" json:"open"`
	// Probes are the calls that are let through after that, at most as many at a time: all must succeed to close it, one
	// failure opens it again. Default: 1.
	Probes int `yaml:"probes" json:"probes"`
	// Slow counts a success that took its last attempt as long as this as a failure. Default: 0, none is.
	Slow time.Duration `yaml:"slow" json:"slow"`
	// PerInstance keeps a breaker for each instance that calls name, so that one bad replica of three is left out alone.
	// Default: false.
	PerInstance bool `yaml:"per_instance" json:"per_instance"`
}

// Bulkhead says how much of the process a dependency may bind. Waiting calls are served tenant by tenant in turn.
type Bulkhead struct {
	// Active calls at a time. Default: 20.
	Active int `yaml:"active" json:"active"`
	// Queue is how many more may wait; -1: none. Default: twice Active.
	Queue int `yaml:"queue" json:"queue"`
	// PerTenant is the most active calls of one tenant; its share of the queue is in the same proportion. Calls that name no
	// tenant are those of one. Default: Active, which is no share.
	PerTenant int `yaml:"per_tenant" json:"per_tenant"`
	// Reserve are places of Active that only probes of the circuit and recovery work get. Default: 0.
	Reserve int `yaml:"reserve" json:"reserve"`
}

// WithDefaults returns the settings with every default filled in.
func (s Settings) WithDefaults() Settings {
	s.Timeout = cmp.Or(s.Timeout, 2*time.Second)
	s.Retry.Attempts = cmp.Or(s.Retry.Attempts, 3)
	s.Retry.Base = cmp.Or(s.Retry.Base, 100*time.Millisecond)
	s.Retry.Max = cmp.Or(s.Retry.Max, max(2*time.Second, s.Retry.Base))
	s.Breaker.Failures = cmp.Or(s.Breaker.Failures, 5)
	s.Breaker.Open = cmp.Or(s.Breaker.Open, 30*time.Second)
	s.Breaker.Probes = cmp.Or(s.Breaker.Probes, 1)
	if !s.Breaker.Consecutive {
		s.Breaker.Window = cmp.Or(s.Breaker.Window, 10*time.Second)
	}
	s.Bulkhead.Active = cmp.Or(s.Bulkhead.Active, 20)
	s.Bulkhead.Queue = cmp.Or(s.Bulkhead.Queue, 2*s.Bulkhead.Active)
	s.Bulkhead.PerTenant = cmp.Or(s.Bulkhead.PerTenant, s.Bulkhead.Active)
	if s.Deadline == 0 {
		s.Deadline = s.longest()
	}
	return s
}

// longest is what attempts and waits take at most, without the time in the queue.
func (s Settings) longest() time.Duration {
	total := time.Duration(s.Retry.Attempts) * s.Timeout
	for n := 1; n < s.Retry.Attempts; n++ {
		total += s.Retry.Backoff(n)
	}
	return total
}

// Backoff is the longest wait after attempt n, from 1.
func (r Retry) Backoff(n int) time.Duration {
	wait := r.Base
	for i := 1; i < n && wait < r.Max; i++ {
		wait *= 2
	}
	return min(wait, r.Max)
}

// Fault is one setting that is wrong.
type Fault struct {
	// Key is where, such as retry.attempts.
	Key string
	// Problem is what, and what would be accepted.
	Problem string
}

// FaultsError is all that is wrong with settings.
type FaultsError []Fault

// Error lists the faults, one a line.
func (f FaultsError) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.Key + " " + fault.Problem
	}
	return strings.Join(lines, "\n")
}

// Bounds of settings.
const (
	longestDeadline = time.Hour
	mostAttempts    = 20
	mostActive      = 100_000
)

// Validate finds all faults at once, as a FaultsError, or returns nil. Settings that are left out have their defaults.
func (s Settings) Validate() error {
	s = s.WithDefaults()
	var faults FaultsError
	faults.within("deadline", s.Deadline, MinAttempt, longestDeadline)
	faults.within("timeout", s.Timeout, time.Millisecond, longestDeadline)
	faults.number("retry.attempts", s.Retry.Attempts, 1, mostAttempts)
	faults.within("retry.base", s.Retry.Base, time.Millisecond, longestDeadline)
	faults.within("retry.max", s.Retry.Max, s.Retry.Base, longestDeadline)
	faults.number("breaker.failures", s.Breaker.Failures, 1, 1_000_000)
	if s.Breaker.Consecutive && s.Breaker.Window != 0 {
		faults = append(faults, Fault{"breaker.window", "does not go with consecutive: failures in a row count however far apart they are"})
	} else if !s.Breaker.Consecutive {
		faults.within("breaker.window", s.Breaker.Window, 100*time.Millisecond, longestDeadline)
	}
	faults.within("breaker.open", s.Breaker.Open, time.Millisecond, 24*time.Hour)
	faults.number("breaker.probes", s.Breaker.Probes, 1, 1000)
	faults.within("breaker.slow", s.Breaker.Slow, 0, longestDeadline)
	faults.number("bulkhead.active", s.Bulkhead.Active, 1, mostActive)
	faults.number("bulkhead.queue", s.Bulkhead.Queue, -1, mostActive)
	faults.number("bulkhead.per_tenant", s.Bulkhead.PerTenant, 1, s.Bulkhead.Active)
	faults.number("bulkhead.reserve", s.Bulkhead.Reserve, 0, s.Bulkhead.Active-1)
	if len(faults) == 0 {
		return nil
	}
	return faults
}

func (f *FaultsError) within(key string, value, lowest, highest time.Duration) {
	if value < lowest || value > highest {
		*f = append(*f, Fault{key, fmt.Sprintf("is %v, but must be from %v to %v", value, lowest, highest)})
	}
}

func (f *FaultsError) number(key string, value, lowest, highest int) {
	if value < lowest || value > highest {
		*f = append(*f, Fault{key, fmt.Sprintf("is %d, but must be from %d to %d", value, lowest, highest)})
	}
}

// Warnings are settings that are accepted and will not do what they seem to.
func (s Settings) Warnings() []string {
	s = s.WithDefaults()
	warnings := CheckNested(Limit{"deadline", s.Deadline}, Limit{"timeout", s.Timeout}, Limit{"breaker.slow", s.Breaker.Slow})
	if s.Retry.Attempts == 1 && len(warnings) == 1 && s.Deadline == s.Timeout {
		warnings = nil // the two are one limit
	}
	if needed := s.longest(); s.Deadline < needed && s.Retry.Attempts > 1 && s.Deadline > s.Timeout {
		warnings = append(warnings, fmt.Sprintf("%d attempts of %s with their waits take up to %s, more than the deadline of %s: when attempts time out, the last ones get less, or never start",
			s.Retry.Attempts, s.Timeout, needed, s.Deadline))
	}
	return warnings
}
