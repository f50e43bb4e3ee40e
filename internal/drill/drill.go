package drill

import (
	"context"
	"slices"
	"strings"
)

// Names of the arms that most drills have.
const (
	Before = "before" // the pattern is off
	After  = "after"  // the pattern is on
)

// Sections of the scenarios, in their order.
const (
	SectionCalls    = "calling a dependency"
	SectionOutcomes = "uncertain outcomes"
	SectionOutbox   = "outbox"
	SectionQueues   = "queue, retry, dead letters"
	SectionSaga     = "saga and shutdown"
	SectionGameDay  = "game day"
)

// Drill is one scenario.
type Drill struct {
	// Name of the scenario.
	Name string `json:"name"`
	// Section it belongs to.
	Section string `json:"section"`
	// Proves says in a line what holds when the drill passes.
	Proves string `json:"proves"`
	// Alone says that it stops a service of the local stack.
	Alone bool `json:"alone"`
	// Tool is a program that it needs beside the services. Empty: none.
	Tool string `json:"tool"`
	// Settings that can be changed, with their defaults.
	Settings []Setting `json:"settings"`
	// Arms in the order in which they run.
	Arms []Arm `json:"arms"`

	checks func(s Settings) []Check
}

// Arm plays the scenario in one way.
type Arm struct {
	Name string `json:"name"`
	// Does says in a line what is on or off.
	Does string `json:"does"`

	play func(ctx context.Context, s *stage) error
}

// All returns every drill in the order of the scenarios.
func All() []Drill {
	return []Drill{
		retryStorm(), rateLimit(), politeClient(), circuitBreaker(), bulkhead(), timeout(),
		paymentFallback(), budget(), tenantBulkhead(), oneReservation(), dependencyDown(),
		uncertainOutcome(), keyConflict(), reconciliation(), durableReconciliation(), compensation(), breakerRecovery(),
		dualWrite(), competingRelays(), leaseExpiry(), poisonOutbox(),
		transient503(), poisonMessage(), deadlock(), retriesExhausted(), duplicateDelivery(), redrive(), latePayment(), slowConsumer(),
		paymentTimeout(), reservationReconcile(), brokerOutage(), sigterm(), kill9(), badConfig(),
		gameDay(),
	}
}

// Find returns the drill of a name.
func Find(name string) (Drill, bool) {
	all := All()
	i := slices.IndexFunc(all, func(d Drill) bool { return d.Name == name })
	if i < 0 {
		return Drill{}, false
	}
	return all[i], true
}

// Checks of the drill with these settings.
func (d Drill) Checks(s Settings) []Check { return d.checks(s) }

// ArmNames are the names of its arms.
func (d Drill) ArmNames() []string {
	var names []string
	for _, arm := range d.Arms {
		names = append(names, arm.Name)
	}
	return names
}

// SettingsText is what can be set, with the defaults: "clients=5 base=250ms".
func (d Drill) SettingsText() string {
	var texts []string
	for _, s := range d.Settings {
		texts = append(texts, s.Name+"="+valueText(s.Default))
	}
	return strings.Join(texts, " ")
}
