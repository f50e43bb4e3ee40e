package console

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/audit"
)

const (
	// actTimeout bounds a change that somebody waits for, such as a plan, which walks over a whole queue.
	actTimeout = 5 * time.Minute
	maxReason  = 1000
)

// bad is an error of whoever filled in a form.
func bad(format string, args ...any) error {
	return &statusError{http.StatusBadRequest, fmt.Sprintf(format, args...), nil}
}

// reasonOf reads why; every change needs it.
func reasonOf(r *http.Request) (string, error) {
	reason := strings.TrimSpace(r.PostFormValue("reason"))
	switch {
	case reason == "":
		return "", bad("give a reason: it is kept in the audit")
	case len(reason) > maxReason || !audit.IsPlain(reason):
		return "", bad("a reason is one line of at most %d bytes of plain text", maxReason)
	}
	return reason, nil
}

func wholeNumber(what, text string, least int) (int, error) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < least || n > math.MaxInt32 {
		return 0, bad("%s must be a whole number from %d to %d, not %q", what, least, math.MaxInt32, cell(text))
	}
	return n, nil
}

// act serves a change: done says where to go on, and the answer is that address, so that a reload does not do it again.
func (p *pages) act(nav string, do func(*http.Request) (next, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r, end, read := p.patient(w, r, nav)
		if !read {
			return
		}
		defer end()
		n, err := do(r)
		if err != nil {
			p.fail(w, r, nav, err)
			return
		}
		p.c.goOn(w, r, n)
	}
}

// patient reads a form in the time that every request has, and then gives the request that of a change: one whose body does not come
// keeps its place no longer than any other. It has answered if the form could not be read.
func (p *pages) patient(w http.ResponseWriter, r *http.Request, nav string) (patient *http.Request, end func(), read bool) {
	if err := r.ParseForm(); err != nil {
		status := http.StatusBadRequest
		if _, big := errors.AsType[*http.MaxBytesError](err); big {
			status = http.StatusRequestEntityTooLarge
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			status = http.StatusRequestTimeout
		}
		p.fail(w, r, nav, &statusError{status, "the form cannot be read; nothing was done", err})
		return nil, nil, false
	}
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Now().Add(actTimeout + writeTimeout)) // a recorder has none
	_ = out.SetWriteDeadline(time.Now().Add(actTimeout + writeTimeout))
	ctx, cancel := context.WithTimeout(r.Context(), actTimeout)
	return r.WithContext(ctx), cancel, true
}

// redriveForm is what a plan is asked for by, as it stands in the form.
type redriveForm struct {
	choice
	Max, Rate, Ramp, Settle, MaxFailures, Reason string
	Repeaters, Reprocess                         bool
	Queues                                       []string
	Failed                                       string
}

func (c *Console) redriveFormPage(r *http.Request) (found, error) {
	q := r.URL.Query()
	f := redriveForm{choice: choiceOf(q), Ramp: "1, 5, 50", Settle: "10m", MaxFailures: "0", Queues: c.workQueues()}
	if f.Queue == "" && len(f.Queues) > 0 {
		f.Queue = f.Queues[0]
	}
	return found{title: "Redrive dead letters", data: f}, nil
}

// planRedrive makes a plan. What is wrong with the form is said in the form, which keeps what was filled in.
func (p *pages) planRedrive(w http.ResponseWriter, r *http.Request) {
	r, end, read := p.patient(w, r, "/dead")
	if !read {
		return
	}
	defer end()
	v := r.PostForm
	f := redriveForm{
		choice: choiceOf(v), Max: v.Get("max"), Rate: v.Get("rate"), Ramp: v.Get("ramp"), Settle: v.Get("settle"), MaxFailures: v.Get("max-failures"), Reason: v.Get("reason"),
		Repeaters: v.Get("include-repeaters") == "1", Reprocess: v.Get("allow-reprocess") == "1", Queues: p.c.workQueues(),
	}
	run, err := p.c.plan(r, &f)
	if err != nil {
		f.Failed = line(err)
		p.write(w, r, statusOf(err), "redrive", "/dead", found{title: "Redrive dead letters", data: f})
		return
	}
	http.Redirect(w, r, link("/run", "id", run.ID), http.StatusSeeOther)
}

func (c *Console) plan(r *http.Request, f *redriveForm) (deadletter.Run, error) {
	request, err := c.planRequest(r, f)
	if err != nil {
		return deadletter.Run{}, err
	}
	request.Who = c.who(r)
	leave, err := c.looks.take(c.gate.Key(r))
	if err != nil {
		return deadletter.Run{}, err
	}
	defer leave()
	return c.letters.Plan(r.Context(), request)
}

func (c *Console) planRequest(r *http.Request, f *redriveForm) (request deadletter.PlanRequest, err error) {
	if request.Reason, err = reasonOf(r); err != nil {
		return request, err
	}
	if request.Filter, err = c.filterOf(r, f.choice); err != nil {
		return request, err
	}
	request.Queue, request.Wait, request.IncludeRepeaters, request.AllowReprocess = f.Queue, lookWait, f.Repeaters, f.Reprocess
	if strings.TrimSpace(f.Max) != "" {
		if request.Max, err = wholeNumber("at most", f.Max, 1); err != nil {
			return request, err
		}
	}
	if text := strings.TrimSuffix(strings.TrimSpace(f.Rate), "/s"); text != "" {
		if request.Rate, err = strconv.ParseFloat(text, 64); err != nil || math.IsNaN(request.Rate) || request.Rate <= 0 {
			return request, bad("messages a second must be a number above 0, not %q", cell(f.Rate))
		}
	}
	for size := range strings.FieldsFuncSeq(f.Ramp, func(c rune) bool { return c == ',' || c == ' ' }) {
		n, err := wholeNumber("a wave", size, 1)
		if err != nil {
			return request, err
		}
		request.Ramp = append(request.Ramp, n)
	}
	if request.Settle, err = time.ParseDuration(strings.TrimSpace(f.Settle)); err != nil && f.Settle != "" {
		return request, bad("the time to settle must be a duration such as 10m, not %q", cell(f.Settle))
	}
	request.MaxFailures = -1
	if strings.TrimSpace(f.MaxFailures) != "" {
		if request.MaxFailures, err = wholeNumber("the most failures", f.MaxFailures, 0); err != nil {
			return request, err
		}
	}
	return request, nil
}

// filterText is what a run was asked for, from the audit's form of it, without the values of masked fields.
func (m masks) filterText(filter json.RawMessage) string {
	var fields map[string]any
	if json.Unmarshal(filter, &fields) != nil || len(fields) == 0 {
		return "all of the queue"
	}
	var parts []string
	for _, name := range sortedKeys(fields) {
		value := fields[name]
		if list, ok := value.([]any); ok && name == "where" {
			for i, where := range list {
				if _, isMasked := m.field(fmt.Sprint(where)); isMasked {
					field, _, _ := strings.Cut(fmt.Sprint(where), "=")
					list[i] = field + "=" + masked
				}
			}
		}
		parts = append(parts, strings.ReplaceAll(name, "_", " ")+" "+fmt.Sprint(value))
	}
	return strings.Join(parts, ", ")
}

type discardData struct {
	choice
	Result  *deadletter.Result // of the look
	Reasons []leftReason
	Failed  string
	Unknown bool // whether all, some or none were discarded
	Reason  string
}

// discard looks first, and drops exactly as many as were seen, when they are still what matches.
func (p *pages) discard(w http.ResponseWriter, r *http.Request) {
	r, end, read := p.patient(w, r, "/dead")
	if !read {
		return
	}
	defer end()
	c, d := p.c, discardData{choice: choiceOf(r.URL.Query()), Reason: r.PostFormValue("reason")}
	result, err := c.discarded(r, d.choice)
	if err == nil && !result.DryRun {
		p.c.goOn(w, r, next{d.Link("/dead/letters"), "discarded"})
		return
	}
	status := http.StatusOK
	if err != nil {
		d.Failed, d.Unknown, status = line(err), r.Method == http.MethodPost && unknown(err), statusOf(err)
	} else {
		d.Result, d.Reasons = &result, reasons(result.Left)
	}
	p.write(w, r, status, "discard", "/dead", found{title: "Discard dead letters", data: d})
}

func (c *Console) discarded(r *http.Request, choice choice) (deadletter.Result, error) {
	filter, err := c.filterOf(r, choice)
	if err != nil {
		return deadletter.Result{}, err
	}
	request := deadletter.DiscardRequest{Common: deadletter.Common{Queue: choice.Queue, Filter: filter, Who: c.who(r), Wait: lookWait, DryRun: true, Reason: "looked at"}}
	if r.Method == http.MethodPost {
		if request.Reason, err = reasonOf(r); err != nil {
			return deadletter.Result{}, err
		}
		seen, err := wholeNumber("the count that was seen", r.PostFormValue("count"), 1)
		if err != nil {
			return deadletter.Result{}, err
		}
		request.DryRun = false
		request.Confirm = func(_ context.Context, plan deadletter.Result) error {
			if plan.Done != seen {
				return &statusError{http.StatusConflict, fmt.Sprintf("%s were seen, and now %s match: nothing was discarded; look again", number(seen), number(plan.Done)), nil}
			}
			return nil
		}
	}
	leave, err := c.looks.take(c.gate.Key(r))
	if err != nil {
		return deadletter.Result{}, err
	}
	defer leave()
	return c.letters.Discard(r.Context(), request)
}

type noteData struct{ deadletter.FailureGroup }

func (c *Console) notePage(r *http.Request) (found, error) {
	id, err := strconv.ParseInt(r.URL.Query().Get("group"), 10, 64)
	if err != nil {
		return found{}, bad("that is not the number of a group")
	}
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	groups, _, err := c.letters.Groups(ctx, deadletter.GroupsRequest{Limit: deadletter.MaxGroups})
	if err != nil {
		return found{}, err
	}
	for _, g := range groups {
		if g.ID == id {
			return found{title: "Note on a group", data: noteData{g}}, nil
		}
	}
	return found{}, deadletter.ErrNoGroup
}

func (c *Console) note(r *http.Request) (next, error) {
	id, err := strconv.ParseInt(r.PostFormValue("group"), 10, 64)
	if err != nil {
		return next{}, bad("that is not the number of a group")
	}
	text := strings.TrimSpace(r.PostFormValue("text"))
	if remove := r.PostFormValue("do") == "remove"; remove {
		text = ""
	} else if text == "" {
		return next{}, bad("write something, or remove the note")
	}
	if err := c.letters.Note(r.Context(), deadletter.NoteRequest{Group: id, Text: text, Who: c.who(r)}); err != nil {
		return next{}, err
	}
	return next{"/dead", "noted"}, nil
}

// holdQueue pauses or resumes a queue.
func (c *Console) holdQueue(hold bool) func(*http.Request) (next, error) {
	return func(r *http.Request) (next, error) {
		queue := r.PostFormValue("queue")
		if !slices.Contains(c.workQueues(), queue) {
			return next{}, bad("there is no queue %s in the configuration of this console", cell(queue))
		}
		reason, err := reasonOf(r)
		if err != nil {
			return next{}, err
		}
		if hold {
			_, err = consumer.PauseQueue(r.Context(), c.opts.Pool, c.opts.Schema, queue, c.who(r), reason)
			return next{link("/queues", "queue", queue), "queue-paused"}, err
		}
		_, err = consumer.ResumeQueue(r.Context(), c.opts.Pool, c.opts.Schema, queue, c.who(r), reason)
		return next{link("/queues", "queue", queue), "queue-resumed"}, err
	}
}
