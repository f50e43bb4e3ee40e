// Package workercheck finds out whether a worker in another process or service keeps the contract of docs/workers.md, by handing it
// messages as a consumer would: one that it must handle, the same one again, and some that it can refuse but must not trip over.
package workercheck

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/message"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Outcomes of a check.
const (
	OK      = "ok"
	Failed  = "failed"
	Skipped = "skipped"
)

// Result is what one check found.
type Result struct {
	Check   string `json:"check"`
	Outcome string `json:"outcome"`
	// Detail says what the worker did, and what it should have done. It may quote the worker's answer.
	Detail string `json:"detail"`
}

// Forgery sends a message as nobody but an impostor would.
type Forgery struct {
	Name   string
	Handle consumer.RemoteHandler
}

// Options of the checks.
type Options struct {
	// Handle hands a message to the worker. Required.
	Handle consumer.RemoteHandler
	// Sample is a message that the worker handles; its ID is not used. Type is required.
	Sample message.Message
	// Forgeries must be refused with 401 or 403. Default: none.
	Forgeries []Forgery
	// Timeout of one message. Default: 30s.
	Timeout time.Duration
}

// run is one pass through the checks.
type run struct {
	o       Options
	prefix  string
	results []Result
}

// Run makes all checks, one after the other. The error says that the worker could not be reached at all.
func Run(ctx context.Context, o Options) ([]Result, error) {
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	r := &run{o: o, prefix: "surefoot-check-" + message.NewID()}
	if err := r.repeats(ctx); err != nil {
		return nil, err
	}
	for _, odd := range r.oddities() {
		_, err := r.hand(ctx, o.Handle, odd.message)
		if err == nil || resilience.Classify(err) == resilience.ClassPermanent {
			r.add(odd.name, OK, outcomeOf(err))
		} else {
			r.add(odd.name, Failed, outcomeOf(err)+"; handle it, or refuse it for good (4xx, reject, exit 65): trying again will not help")
		}
	}
	for _, forged := range o.Forgeries {
		r.forgery(ctx, forged)
	}
	return r.results, ctx.Err()
}

func (r *run) add(check, outcome, detail string) {
	r.results = append(r.results, Result{check, outcome, detail})
}

func (r *run) hand(ctx context.Context, handle consumer.RemoteHandler, m message.Message) ([]message.Message, error) {
	ctx, cancel := resilience.WithBudget(ctx, r.o.Timeout)
	defer cancel()
	return handle(ctx, m)
}

// repeats hands over a message, the same again, and another one.
func (r *run) repeats(ctx context.Context) error {
	first := r.sample("1")
	events, err := r.hand(ctx, r.o.Handle, first)
	if err != nil && resilience.StatusOf(err) == 0 && (resilience.IsNetwork(err) || resilience.Classify(err) == resilience.ClassUnavailable) {
		return err
	}
	const repeat, same = "a repeat is done", "a repeat emits the same events"
	if err != nil {
		r.add("a message is done", Failed, outcomeOf(err)+"; give a message that it handles with --type and --body")
		r.add(repeat, Skipped, "")
		r.add(same, Skipped, "")
		return nil
	}
	r.add("a message is done", OK, fmt.Sprintf("done, %d events", len(events)))
	first.Attempts = 1
	again, err := r.hand(ctx, r.o.Handle, first)
	r.must(repeat, err, "a message that it knows again is done: 2xx or 409, done, exit 0")
	switch {
	case err != nil:
		r.add(same, Skipped, "")
	case slices.EqualFunc(events, again, alike):
		r.add(same, OK, fmt.Sprintf("%d events", len(again)))
	default:
		r.add(same, Failed, fmt.Sprintf("%d events, but %d at first, or others; should the first answer be lost, its events would be", len(again), len(events)))
	}
	_, err = r.hand(ctx, r.o.Handle, r.sample("2"))
	r.must("another message is done", err, "a new id is a new message")
	return nil
}

// alike leaves out what a repeat may choose anew.
func alike(a, b message.Message) bool {
	return a.Type == b.Type && a.Key == b.Key && a.Exchange == b.Exchange && a.Route() == b.Route() && bytes.Equal(a.Payload, b.Payload)
}

func (r *run) must(check string, err error, wanted string) {
	if err == nil {
		r.add(check, OK, outcomeOf(err))
		return
	}
	r.add(check, Failed, outcomeOf(err)+"; "+wanted)
}

func (r *run) sample(suffix string) message.Message {
	m := r.o.Sample
	m.ID, m.Source = r.prefix+"-"+suffix, "surefoot worker check"
	return m.WithDefaults(time.Now())
}

type oddity struct {
	name    string
	message message.Message
}

func (r *run) oddities() []oddity {
	hostile := r.sample("3 50%\r\nX-Evil: 1\u202e\u00e9")
	hostile.Key, hostile.CorrelationID = strings.Repeat("k\n", 500), "\x1b[31m"
	broken := r.sample("4")
	broken.Payload = []byte("\xff\x00{")
	empty := r.sample("5")
	empty.Payload = nil
	unknown := r.sample("6")
	unknown.Type = "surefoot.check.unknown"
	return []oddity{
		{"hostile metadata does no harm", hostile},
		{"a broken body does no harm", broken},
		{"an empty body does no harm", empty},
		{"an unknown type does no harm", unknown},
	}
}

func (r *run) forgery(ctx context.Context, f Forgery) {
	_, err := r.hand(ctx, f.Handle, r.sample("forged"))
	status := resilience.StatusOf(err)
	if status == http.StatusUnauthorized || status == http.StatusForbidden {
		r.add(f.Name, OK, outcomeOf(err))
		return
	}
	r.add(f.Name, Failed, outcomeOf(err)+"; anybody could send messages: answer 401")
}

// outcomeOf says what a worker did, with the beginning of what it said about a failure.
func outcomeOf(err error) string {
	if err == nil {
		return "done"
	}
	text := string(resilience.Classify(err)) + ": " + err.Error()
	if with, ok := errors.AsType[interface {
		error
		FailureStack() string
	}](err); ok && with.FailureStack() != "" {
		text += ": " + strings.TrimSpace(message.Clip(with.FailureStack(), 200))
	}
	return text
}
