package console

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/outbox"
)

const (
	outboxLimit = 100
	// askedWait is how long a request waits to hear what a relay did.
	askedWait = 5 * time.Second
)

type outboxData struct {
	State, Key, Type string
	States           []string
	Summary          outbox.Summary
	Routes           []outbox.StoppedRoute
	Rows             []outbox.Parked
	Limited          bool
	CanAct           bool // the rows that are listed can be asked for something
	CanRetry         bool
}

func (c *Console) outboxPage(r *http.Request) (found, error) {
	q := r.URL.Query()
	d := outboxData{State: q.Get("state"), Key: strings.TrimSpace(q.Get("key")), Type: strings.TrimSpace(q.Get("type"))}
	d.States = []string{outbox.StateRetry, outbox.StateDead, outbox.StateStopped, outbox.StatePending}
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	pool, schema := c.opts.Pool, c.opts.Schema
	var err error
	if d.Summary, err = outbox.Summarize(ctx, pool, schema); err != nil {
		return found{}, err
	}
	if d.Routes, err = outbox.ListStopped(ctx, pool, schema, outboxLimit); err != nil {
		return found{}, err
	}
	list, filter := outbox.ListParked, outbox.Filter{Key: d.Key, Type: d.Type, Limit: outboxLimit}
	switch d.State {
	case "", outbox.StateRetry, outbox.StateDead:
		filter.State, d.CanAct, d.CanRetry = d.State, true, true
	case outbox.StateStopped:
		list, d.CanAct = outbox.ListStoppedRows, true
	case outbox.StatePending:
		list = outbox.ListPending
	default:
		return found{}, bad("there is no such state: use one of %s", strings.Join(d.States, ", "))
	}
	if d.Rows, err = list(ctx, pool, schema, filter); err != nil {
		return found{}, err
	}
	d.Limited = len(d.Rows) == outboxLimit
	return found{title: "Outbox", data: d}, nil
}

// What the relays can be asked for.
const (
	outboxRetry   = outbox.ActionRetry
	outboxDiscard = outbox.ActionDiscard
)

// askOutbox asks the relays to try rows again, or to discard them: only those who hold them may.
func (c *Console) askOutbox(action string) func(*http.Request) (next, error) {
	return func(r *http.Request) (next, error) {
		request := outbox.Request{Action: action, Who: c.who(r)}
		var err error
		if request.Reason, err = reasonOf(r); err != nil {
			return next{}, err
		}
		rows, err := c.rowsToAskFor(r, action)
		if err != nil {
			return next{}, err
		}
		operation, err := outbox.Ask(r.Context(), c.opts.Pool, c.opts.Schema, request, rows)
		if err != nil {
			return next{}, err
		}
		patience := askedWait
		if o := c.known.get().Outbox; o.Fresh() && o.Value.Relays == 0 { // nobody does it now
			patience = 0
		}
		outcomes, err := outbox.Await(r.Context(), c.opts.Pool, c.opts.Schema, operation, patience)
		if err != nil {
			return next{}, err
		}
		done, failed := "asked", []failedAct(nil)
		for _, o := range outcomes {
			switch o.State {
			case "pending":
				done = "asking"
			case "refused":
				failed = append(failed, failedAct{o.ID, o.Outcome})
			}
		}
		return next{link("/outbox", "state", r.PostFormValue("state")), done}, notAll(len(outcomes), failed)
	}
}

// rowsToAskFor are those of the form that are still there.
func (c *Console) rowsToAskFor(r *http.Request, action string) ([]outbox.Parked, error) {
	ids := listOf(r.PostForm, "id")
	if len(ids) == 0 {
		return nil, bad("choose rows first")
	}
	filter := outbox.Filter{IDs: ids, Limit: 10 * outboxLimit}
	rows, err := outbox.ListParked(r.Context(), c.opts.Pool, c.opts.Schema, filter)
	if err != nil {
		return nil, err
	}
	if action == outboxDiscard {
		stopped, err := outbox.ListStoppedRows(r.Context(), c.opts.Pool, c.opts.Schema, filter)
		if err != nil {
			return nil, err
		}
		rows = append(rows, stopped...)
	}
	if len(rows) == 0 {
		return nil, &statusError{http.StatusConflict, "none of these rows is there any more", nil}
	}
	return rows, nil
}

// failedAct is one of several that was not done.
type failedAct struct{ what, why string }

// maxFailed of those that failed are named.
const maxFailed = 20

// notAll says which of several were not done, each with its reason; nil if all were.
func notAll(of int, failed []failedAct) error {
	if len(failed) == 0 {
		return nil
	}
	text := fmt.Sprintf("%s of %s were not done", number(len(failed)), number(of))
	if len(failed) == 1 {
		text = fmt.Sprintf("1 of %s was not done", number(of))
	}
	var named []string
	for _, f := range failed[:min(len(failed), maxFailed)] {
		named = append(named, cell(f.what)+": "+cell(f.why))
	}
	if more := len(failed) - maxFailed; more > 0 {
		named = append(named, fmt.Sprintf("and %s more", number(more)))
	}
	return &statusError{http.StatusConflict, text + "; the others were. " + strings.Join(named, "; "), nil}
}

// listOf reads a list of a form.
func listOf(form url.Values, name string) (list []string) {
	for _, v := range form[name] {
		if v != "" {
			list = append(list, v)
		}
	}
	return list
}
