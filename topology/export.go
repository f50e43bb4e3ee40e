package topology

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// ExportOptions say for whom a spec is written down.
type ExportOptions struct {
	// Vhost that everything is in. Default: "/".
	Vhost string
	// Users adds to definitions a user for each role, with its rights; see [Rights]. Default: false.
	Users bool
	// Exchanges that rows of the outbox name beside those of the spec, for the rights of the relay. Default: none.
	Exchanges []string
	// Cluster is the RabbitmqCluster that resources refer to. Default: "rabbitmq".
	Cluster string
}

// Definitions are what `rabbitmqctl import_definitions` and POST /api/definitions take. An import makes what is missing and leaves alone what is there, also
// when it has other properties; only users are overwritten.
type Definitions struct {
	Users       []DefinedUser       `json:"users,omitempty"`
	Permissions []DefinedPermission `json:"permissions,omitempty"`
	Exchanges   []DefinedExchange   `json:"exchanges"`
	Queues      []DefinedQueue      `json:"queues"`
	Bindings    []DefinedBinding    `json:"bindings"`
}

// DefinedUser is a user without a password, who cannot log in by one until one is set.
type DefinedUser struct {
	Name         string   `json:"name"`
	PasswordHash string   `json:"password_hash"`
	Algorithm    string   `json:"hashing_algorithm"`
	Tags         []string `json:"tags"`
}

// DefinedPermission are the names, as regular expressions, of what a user may configure, write to and read from.
type DefinedPermission struct {
	User      string `json:"user"`
	Vhost     string `json:"vhost"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// DefinedExchange is an exchange of a vhost.
type DefinedExchange struct {
	Name       string         `json:"name"`
	Vhost      string         `json:"vhost"`
	Type       string         `json:"type"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Internal   bool           `json:"internal"`
	Arguments  map[string]any `json:"arguments"`
}

// DefinedQueue is a queue of a vhost.
type DefinedQueue struct {
	Name       string         `json:"name"`
	Vhost      string         `json:"vhost"`
	Durable    bool           `json:"durable"`
	AutoDelete bool           `json:"auto_delete"`
	Arguments  map[string]any `json:"arguments"`
}

// DefinedBinding is a binding of a vhost.
type DefinedBinding struct {
	Source          string         `json:"source"`
	Vhost           string         `json:"vhost"`
	Destination     string         `json:"destination"`
	DestinationType string         `json:"destination_type"`
	RoutingKey      string         `json:"routing_key"`
	Arguments       map[string]any `json:"arguments"`
}

// Export writes a spec down as definitions, in a fixed order. It does no I/O; the spec should be valid. The vhost must be there: it is not part
// of them, for an import would overwrite its description.
func Export(spec Spec, o ExportOptions) Definitions {
	want, vhost := Desired(spec), cmp.Or(o.Vhost, "/")
	d := Definitions{Exchanges: []DefinedExchange{}, Queues: []DefinedQueue{}, Bindings: []DefinedBinding{}}
	if o.Users {
		d.Users, d.Permissions = Rights(spec, o)
	}
	for _, name := range slices.Sorted(maps.Keys(want.Exchanges)) {
		e := want.Exchanges[name]
		d.Exchanges = append(d.Exchanges, DefinedExchange{name, vhost, e.Type, e.Durable, e.AutoDelete, e.Internal, map[string]any{}})
	}
	for _, name := range slices.Sorted(maps.Keys(want.Queues)) {
		q := want.Queues[name]
		d.Queues = append(d.Queues, DefinedQueue{name, vhost, q.Durable, q.AutoDelete, q.Arguments})
	}
	for _, b := range slices.SortedFunc(maps.Keys(want.Bindings), compareBindings) {
		d.Bindings = append(d.Bindings, DefinedBinding{b.Exchange, vhost, b.Queue, "queue", b.RoutingKey, map[string]any{}})
	}
	return d
}

// Users of the roles.
const (
	userRelay    = "surefoot-relay"
	userConsume  = "surefoot-consume"
	userDLQ      = "surefoot-dlq"
	userTopology = "surefoot-topology"
	userRun      = "surefoot-run"

	nothing        = "^$"
	fences         = `^surefoot\.fence\.`
	defaultName    = "amq.default" // the default exchange, by which a queue is reached by its name
	passwordHashes = "rabbit_password_hashing_sha256"
	tagMonitoring  = "monitoring" // to see queues, bindings and policies
)

// Rights are a user for each role, with no more rights than it needs:
//
//   - relay configures its fences alone, and writes to the exchanges of the spec and to [ExportOptions].Exchanges;
//   - consume reads the work queues, and moves messages to retry and dead-letter queues through the default exchange;
//   - dlq reads the dead-letter queues, and moves messages back through the default exchange; it may write to the work queues, for newer brokers
//     (seen on 4.3) want some right on a queue from who asks whether it is there;
//   - topology makes, and with prune removes, the spec's exchanges and queues; it needs more for what the spec does not name any more;
//   - run is for one process with all roles.
//
// Watchdog and reconciliation use no broker.
func Rights(spec Spec, o ExportOptions) ([]DefinedUser, []DefinedPermission) {
	want := Desired(spec)
	var work, dead []string
	exchanges := slices.Clone(o.Exchanges)
	for _, q := range spec.WithDefaults().Queues {
		work, dead, exchanges = append(work, q.Name), append(dead, q.DLQ()), append(exchanges, q.Exchange)
	}
	all := slices.AppendSeq(slices.Collect(maps.Keys(want.Exchanges)), maps.Keys(want.Queues))
	both, every := slices.Concat(work, dead), slices.Concat(exchanges, []string{defaultName})
	var users []DefinedUser
	var permissions []DefinedPermission
	for _, p := range []DefinedPermission{
		{User: userRelay, Configure: fences, Write: only(exchanges), Read: nothing},
		{User: userConsume, Configure: nothing, Write: only([]string{defaultName}), Read: only(work)},
		{User: userDLQ, Configure: nothing, Write: only(slices.Concat(work, []string{defaultName})), Read: only(dead)},
		{User: userTopology, Configure: only(all), Write: only(all), Read: only(all)},
		{User: userRun, Configure: fences, Write: only(every), Read: only(both)},
	} {
		p.Vhost = cmp.Or(o.Vhost, "/")
		tags := []string{tagMonitoring}
		if p.User == userRelay {
			tags = []string{}
		}
		users = append(users, DefinedUser{Name: p.User, Algorithm: passwordHashes, Tags: tags})
		permissions = append(permissions, p)
	}
	return users, permissions
}

// only is a regular expression of exactly these names.
func only(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = regexp.QuoteMeta(name)
	}
	slices.Sort(quoted)
	quoted = slices.Compact(quoted)
	if len(quoted) == 0 {
		return nothing
	}
	return "^(" + strings.Join(quoted, "|") + ")$"
}

// Resources are a Kubernetes list for RabbitMQ's messaging topology operator, API version rabbitmq.com/v1beta1.
type Resources struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Items      []Resource `json:"items"`
}

// Resource is an Exchange, Queue or Binding of the operator.
type Resource struct {
	APIVersion string           `json:"apiVersion"`
	Kind       string           `json:"kind"`
	Metadata   ResourceMetadata `json:"metadata"`
	Spec       ResourceSpec     `json:"spec"`
}

// ResourceMetadata names a resource.
type ResourceMetadata struct {
	Name string `json:"name"`
}

// ResourceSpec has the fields of the three kinds.
type ResourceSpec struct {
	Name            string           `json:"name,omitempty"`
	Vhost           string           `json:"vhost"`
	Type            string           `json:"type,omitempty"`
	Durable         bool             `json:"durable,omitempty"`
	Source          string           `json:"source,omitempty"`
	Destination     string           `json:"destination,omitempty"`
	DestinationType string           `json:"destinationType,omitempty"`
	RoutingKey      string           `json:"routingKey,omitempty"`
	Arguments       map[string]any   `json:"arguments,omitempty"`
	Cluster         ClusterReference `json:"rabbitmqClusterReference"`
}

// ClusterReference names a RabbitmqCluster of the same namespace.
type ClusterReference struct {
	Name string `json:"name"`
}

// ExportResources writes a spec down for the messaging topology operator, without users. Beware: when a Queue resource is deleted, the operator deletes the queue
// with its messages.
func ExportResources(spec Spec, o ExportOptions) Resources {
	o.Users = false
	d, cluster := Export(spec, o), ClusterReference{cmp.Or(o.Cluster, "rabbitmq")}
	list := Resources{APIVersion: "v1", Kind: "List", Items: []Resource{}}
	add := func(kind, name string, s ResourceSpec) {
		s.Cluster = cluster
		list.Items = append(list.Items, Resource{"rabbitmq.com/v1beta1", kind, ResourceMetadata{resourceName(name)}, s})
	}
	for _, e := range d.Exchanges {
		add("Exchange", e.Name, ResourceSpec{Name: e.Name, Vhost: e.Vhost, Type: e.Type, Durable: e.Durable})
	}
	for _, q := range d.Queues {
		arguments := maps.Clone(q.Arguments)
		delete(arguments, argType) // it has a field of its own
		add("Queue", q.Name, ResourceSpec{Name: q.Name, Vhost: q.Vhost, Type: typeQuorum, Durable: q.Durable, Arguments: arguments})
	}
	for _, b := range d.Bindings {
		add("Binding", b.Source+" "+b.Destination+" "+b.RoutingKey, ResourceSpec{
			Vhost: b.Vhost, Source: b.Source, Destination: b.Destination, DestinationType: b.DestinationType, RoutingKey: b.RoutingKey,
		})
	}
	return list
}

// resourceNameMax leaves room for the hash within the 253 bytes of a DNS name.
const resourceNameMax = 200

var (
	dnsName    = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	notOfAName = regexp.MustCompile(`[^a-z0-9]+`)
)

// resourceName makes a DNS name: the name itself where it is one, else what is left of it with a hash, so that two that look alike stay two.
func resourceName(name string) string {
	if dnsName.MatchString(name) && len(name) <= resourceNameMax {
		return name
	}
	plain := notOfAName.ReplaceAllString(strings.ToLower(name), "-")
	sum := sha256.Sum256([]byte(name))
	return strings.Trim(plain[:min(len(plain), resourceNameMax)]+"-"+hex.EncodeToString(sum[:4]), "-")
}
