package topology

import (
	"cmp"
	"time"
)

// Ordering says which messages of a queue wait for each other.
type Ordering string

// The orderings.
const (
	// OrderingNone lets every message run as soon as there is a place.
	OrderingNone Ordering = "none"
	// OrderingLanes runs the messages of one key one at a time.
	OrderingLanes Ordering = "lanes"
)

// Spec is the wanted topology of a vhost. The zero value wants nothing.
type Spec struct {
	// Exchange is the exchange of queues that name none. Default: none.
	Exchange string `json:"exchange,omitempty" yaml:"exchange"`
	// Queues are the work queues. Default: none.
	Queues []Queue `json:"queues" yaml:"queues"`
}

// Queue is a work queue with its retry and dead-letter queues, and how it is consumed.
type Queue struct {
	// Name of the work queue. Required.
	Name string `json:"name" yaml:"name"`
	// Exchange is the topic exchange that it is bound to. Default: the spec's.
	Exchange string `json:"exchange,omitempty" yaml:"exchange"`
	// Bindings are patterns of routing keys: words between dots, * for one word, # for any number. Default: none.
	Bindings []string `json:"bindings,omitempty" yaml:"bindings"`
	// Retry are the delays of the retry queues, shortest first. Default: 30s.
	Retry []time.Duration `json:"retry,omitempty" yaml:"retry"`
	// MaxAttempts is how often a message is tried, the first included. Default: 5.
	MaxAttempts int `json:"max_attempts,omitempty" yaml:"max_attempts"`
	// Prefetch is the most unacknowledged messages of a consumer. Default: 10.
	Prefetch int `json:"prefetch,omitempty" yaml:"prefetch"`
	// Concurrency is the most handlers at a time, at most Prefetch. Default: Prefetch, and no more than the consumer's
	// pool has connections.
	Concurrency int `json:"concurrency,omitempty" yaml:"concurrency"`
	// HandlerTimeout is a message's deadline in the handler. Default: 30s.
	HandlerTimeout time.Duration `json:"handler_timeout,omitempty" yaml:"handler_timeout"`
	// Ordering is none or lanes. Default: none.
	Ordering Ordering `json:"ordering,omitempty" yaml:"ordering"`
	// SingleActiveConsumer lets one consumer at a time receive, so that lanes hold across processes. Default: false.
	SingleActiveConsumer bool `json:"single_active_consumer,omitempty" yaml:"single_active_consumer"`
	// Owner is the team in charge, shown with its dead letters. Default: none.
	Owner string `json:"owner,omitempty" yaml:"owner"`
	// Runbook says what to do about dead letters, often a URL. Default: none.
	Runbook string `json:"runbook,omitempty" yaml:"runbook"`
	// Target is the program or endpoint that `surefoot consume run` hands messages to. Default: none, a Go program consumes.
	Target *Target `json:"target,omitempty" yaml:"target"`
}

// Target is who handles messages: a program or an HTTP endpoint, one of the two.
type Target struct {
	// Exec is the program and its arguments.
	Exec []string `json:"exec,omitempty" yaml:"exec"`
	// KeepAlive keeps processes of the program, which then speaks JSON lines: as many as handle messages at a time. Default: false, one
	// process per message.
	KeepAlive bool `json:"keep_alive,omitempty" yaml:"keep_alive"`
	// HTTP is an endpoint that messages are posted to.
	HTTP *HTTPTarget `json:"http,omitempty" yaml:"http"`
}

// HTTPTarget is an endpoint that messages are posted to.
type HTTPTarget struct {
	// URL of the endpoint, http:// or https://. Required.
	URL string `json:"url" yaml:"url"`
	// Dependency under dependencies whose circuit, places and timeout hold. Default: the queue's own, with handler_timeout and
	// concurrency as timeout and places.
	Dependency string `json:"dependency,omitempty" yaml:"dependency"`
	// BearerFile holds a token that is sent as authorization; it is read for each message. Default: none.
	BearerFile string `json:"bearer_file,omitempty" yaml:"bearer_file"`
	// SigningKeyFile holds the key with which requests are signed; it is read for each message. Default: none, they are not.
	SigningKeyFile string `json:"signing_key_file,omitempty" yaml:"signing_key_file"`
	// CAFile holds the trusted authorities, in PEM form. Default: the system's.
	CAFile string `json:"ca_file,omitempty" yaml:"ca_file"`
	// CertFile and KeyFile are shown to the endpoint; they are read for each connection. Default: none.
	CertFile string `json:"cert_file,omitempty" yaml:"cert_file"`
	KeyFile  string `json:"key_file,omitempty" yaml:"key_file"`
	// IgnoreAnswer leaves the bodies of successes unread, so that the endpoint emits no events. Default: false.
	IgnoreAnswer bool `json:"ignore_answer,omitempty" yaml:"ignore_answer"`
}

// WithDefaults returns a copy with every default filled in.
func (s Spec) WithDefaults() Spec {
	queues := make([]Queue, len(s.Queues))
	for i, q := range s.Queues {
		queues[i] = q.withDefaults(s.Exchange)
	}
	s.Queues = queues
	return s
}

func (q Queue) withDefaults(exchange string) Queue {
	q.Exchange = cmp.Or(q.Exchange, exchange)
	q.MaxAttempts = cmp.Or(q.MaxAttempts, 5)
	q.Prefetch = cmp.Or(q.Prefetch, 10)
	q.Concurrency = cmp.Or(q.Concurrency, q.Prefetch)
	q.HandlerTimeout = cmp.Or(q.HandlerTimeout, 30*time.Second)
	q.Ordering = cmp.Or(q.Ordering, OrderingNone)
	if q.Retry == nil {
		q.Retry = []time.Duration{30 * time.Second}
	}
	return q
}

// Find returns the queue of that name with its defaults, and whether the spec has it.
func (s Spec) Find(name string) (Queue, bool) {
	for _, q := range s.Queues {
		if q.Name == name {
			return q.withDefaults(s.Exchange), true
		}
	}
	return Queue{}, false
}
