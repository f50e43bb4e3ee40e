package console

import (
	"context"
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

// askOutbox asks the relays to try rows again, or to discard them: only those who hold them may.
func (c *Console) askOutbox(r *http.Request) (string, error) {
	request := outbox.Request{Action: r.PostFormValue("do"), Who: c.who(r)}
	if request.Action != outbox.ActionRetry && request.Action != outbox.ActionDiscard {
		return "", bad("rows are tried again, or discarded")
	}
	var err error
	if request.Reason, err = reasonOf(r); err != nil {
		return "", err
	}
	ids := r.PostForm["id"]
	if len(ids) == 0 {
		return "", bad("choose rows first")
	}
	filter := outbox.Filter{IDs: ids, Limit: 10 * outboxLimit}
	rows, err := outbox.ListParked(r.Context(), c.opts.Pool, c.opts.Schema, filter)
	if err != nil {
		return "", err
	}
	if request.Action == outbox.ActionDiscard {
		stopped, err := outbox.ListStoppedRows(r.Context(), c.opts.Pool, c.opts.Schema, filter)
		if err != nil {
			return "", err
		}
		rows = append(rows, stopped...)
	}
	if len(rows) == 0 {
		return "", &statusError{http.StatusConflict, "none of these rows is there any more", nil}
	}
	operation, err := outbox.Ask(r.Context(), c.opts.Pool, c.opts.Schema, request, rows)
	if err != nil {
		return "", err
	}
	patience := askedWait
	if o := c.known.get().Outbox; o.Fresh() && o.Value.Relays == 0 { // nobody does it now
		patience = 0
	}
	outcomes, err := outbox.Await(r.Context(), c.opts.Pool, c.opts.Schema, operation, patience)
	if err != nil {
		return "", err
	}
	done := "asked"
	for _, o := range outcomes {
		switch o.State {
		case "pending":
			done = "asking"
		case "refused":
			return "", &statusError{http.StatusConflict, "a relay refused it: " + line(o.Outcome), nil}
		}
	}
	return link("/outbox", "state", r.PostFormValue("state"), "done", done), nil
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
