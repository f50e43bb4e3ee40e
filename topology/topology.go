package topology

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// ErrManagement says that a plan needs the management API, and it did not answer or denied access.
var ErrManagement = errors.New("topology: the management API is needed to see what is there")

// ErrConflicts says that something exists with other immutable properties; the plan tells the way out.
var ErrConflicts = errors.New("topology: something exists with other properties, which cannot be changed in place")

// Options of a topology.
type Options struct {
	// Spec is what is wanted. Required.
	Spec Spec
	// URL of the broker, with the vhost, or file:///path of a file that holds it. Required.
	URL string
	// ManagementURL of the broker. Default: URL's host and credentials at port 15672, 15671 with https for amqps.
	ManagementURL string
	// TLS for amqps and https. Default: from the URL's parameters, and the system's authorities.
	TLS *tls.Config
	// Host and Version name this process in connections. Default: "unknown" and "dev".
	Host, Version string
	// Logger for what is changed. Default: none.
	Logger zerolog.Logger
}

// Topology compares a spec with a vhost, and makes it so. Safe for concurrent use; each call connects on its own.
type Topology struct {
	opts       Options
	spec       Spec
	management *rabbit.Management
	settle     time.Duration // how long a queue is watched before it is pruned
}

// New checks the options and finds all faults at once. It does no I/O.
func New(opts Options) (*Topology, error) {
	t := &Topology{opts: opts, spec: opts.Spec.WithDefaults(), settle: settle}
	management, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: opts.URL, URL: opts.ManagementURL, TLS: opts.TLS})
	t.management = management
	return t, errors.Join(opts.Spec.Validate(), t.connection().Validate(), err)
}

func (t *Topology) connection() rabbit.Options {
	return rabbit.Options{URL: t.opts.URL, Role: "topology", Host: t.opts.Host, Version: t.opts.Version, TLS: t.opts.TLS, Logger: t.opts.Logger}
}

// Plan says what an apply would change. It needs the management API: without it the error wraps ErrManagement.
func (t *Topology) Plan(ctx context.Context) (Plan, error) {
	actual, _, err := Read(ctx, t.management)
	if err != nil {
		return Plan{}, fmt.Errorf("%w: %w", ErrManagement, err)
	}
	return Diff(Desired(t.spec), actual), nil
}

// Verify checks that messages of the spec's queue cannot be lost on their way. The report's Err says whether it is safe to consume. An error here means that nothing is known.
func (t *Topology) Verify(ctx context.Context, queue string) (Report, error) {
	q, known := t.spec.Find(queue)
	if !known {
		return Report{}, fmt.Errorf("topology: queue %q is not in the spec", queue)
	}
	conn, err := rabbit.Dial(ctx, t.connection())
	if err != nil {
		return Report{}, err
	}
	report, err := Verify(ctx, conn, t.management, q.Path())
	return report, errors.Join(err, conn.Close())
}

// Verify checks the way of a queue's messages over a connection of the caller: that its queues are there, and, when management is not nil and answers, that nothing
// on the way loses messages. What could not be checked is in the report; a management API that is away does not keep a consumer from its work.
func Verify(ctx context.Context, conn *rabbit.Conn, management *rabbit.Management, path Path) (Report, error) {
	if v := conn.ServerVersion(); v != (rabbit.Version{}) && !v.Supported() {
		return Report{Path: path, Findings: []Finding{{path.Queue, "is on RabbitMQ " + v.String() + ", which cannot dead-letter at least once", "use 3.10 or newer"}}}, nil
	}
	reason := "no management URL"
	if management != nil {
		actual, unchecked, err := Read(ctx, management)
		if err == nil {
			report := Check(actual, path)
			report.Unchecked = append(report.Unchecked, unchecked...)
			return report, nil
		}
		if ctx.Err() != nil {
			return Report{}, fmt.Errorf("topology: verify queue %q: %w", path.Queue, err)
		}
		reason = err.Error()
	}
	return verifyPresence(ctx, conn, path, reason)
}

// verifyPresence looks for the queues alone.
func verifyPresence(ctx context.Context, conn *rabbit.Conn, path Path, reason string) (Report, error) {
	report := Report{Path: path, Unchecked: []string{
		fmt.Sprintf("arguments, bindings and policies of queue %q and its retry and dead-letter queues: %s", path.Queue, reason),
	}}
	names, mends := []string{path.Queue, path.DeadLetters}, map[string]string{}
	for _, tier := range path.Retry {
		names = append(names, tier.Queue)
		mends[tier.Queue] = mendRetry(tier)
	}
	for _, name := range names {
		_, _, err := conn.Inspect(ctx, name)
		switch rabbit.Code(err) {
		case 0:
			if err != nil {
				return Report{}, err
			}
		case codeNotFound:
			report.Findings = append(report.Findings, Finding{name, "is missing", cmp.Or(mends[name], mendApply)})
		case codeAccessRefused:
			report.Unchecked = append(report.Unchecked, fmt.Sprintf("whether queue %q exists: no permission", name))
		default:
			return Report{}, err
		}
	}
	return report, nil
}

const (
	codeAccessRefused = 403
	codeNotFound      = 404
)
