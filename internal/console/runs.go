package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
)

const (
	// maxDriven is how many redrives one console drives at a time.
	maxDriven = 16
	// startWait is how long a request waits to hear that its redrive has begun.
	startWait = 5 * time.Second
	startPoll = 50 * time.Millisecond

	runsLimit    = 50
	lettersOfRun = 50
)

// driven are the redrives that this process drives. They last longer than the requests that begin them. Safe for concurrent use.
type driven struct {
	mu      sync.Mutex
	ctx     context.Context //nolint:containedctx // that of Run, which outlives every request
	working sync.WaitGroup
	count   int
}

func (d *driven) open(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ctx = ctx
}

// close takes no more, and waits for those under way, which stop when the context of Run has ended.
func (d *driven) close() {
	d.mu.Lock()
	d.ctx = nil
	d.mu.Unlock()
	d.working.Wait()
}

// begin returns the context for one more, or nil when there is no place.
func (d *driven) begin() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil || d.count >= maxDriven {
		return nil
	}
	d.count++
	d.working.Add(1)
	return d.ctx
}

func (d *driven) end() {
	d.mu.Lock()
	d.count--
	d.mu.Unlock()
	d.working.Done()
}

// drive begins a planned redrive, or goes on with one, and returns once it is under way. It is then driven by this process until it ends or
// this process does; any replica goes on with it.
// It must not end with the request that begins it.
//
//nolint:contextcheck // the context is that of Run
func (c *Console) drive(r *http.Request, run deadletter.Run, failures *int) error {
	ctx := c.runs.begin()
	if ctx == nil {
		return &statusError{http.StatusServiceUnavailable, "this console drives " + strconv.Itoa(maxDriven) + " redrives already, or is being stopped; any other can, and surefoot dlq redrive --plan " + run.ID.String(), nil}
	}
	request := deadletter.DriveRequest{Run: run.ID, Who: c.who(r), MaxFailures: failures}
	done := make(chan error, 1)
	go func() {
		defer telemetry.FatalOnPanic(c.opts.Logger)
		defer c.runs.end()
		var err error
		if run.State == deadletter.RunRunning {
			_, err = c.letters.DriveRun(ctx, request)
		} else {
			_, err = c.letters.StartRun(ctx, request, run.State != deadletter.RunPlanned)
		}
		if err != nil && ctx.Err() == nil {
			c.opts.Logger.Warn().Err(err).Stringer(telemetry.FieldRun, run.ID).Msg("redrive not driven to its end from here")
		}
		done <- err
	}()
	return c.underWay(r.Context(), run, done)
}

// errNotBegun says neither that a redrive has begun nor that it has not: the database owes the answer.
var errNotBegun = errors.New("the redrive was asked for, and has not begun yet; its page shows what becomes of it")

// underWay waits until a redrive has an owner, or has ended.
func (c *Console) underWay(ctx context.Context, run deadletter.Run, done <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	poll := time.NewTicker(startPoll)
	defer poll.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-ctx.Done():
			return errNotBegun
		case <-poll.C:
			now, err := c.letters.GetRun(ctx, run.ID)
			if err == nil && (now.State != run.State || now.Owner != "") {
				return nil
			}
		}
	}
}

type runsData struct {
	Queue  string
	Queues []string
	Plans  bool
	Runs   []deadletter.Run
}

func (c *Console) runsPage(r *http.Request) (found, error) {
	q := r.URL.Query()
	d := runsData{Queue: strings.TrimSuffix(q.Get("queue"), deadletter.Suffix), Plans: q.Get("plans") == "1", Queues: c.workQueues()}
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	var err error
	if d.Runs, err = c.letters.Runs(ctx, d.Queue, d.Plans, runsLimit); err != nil {
		return found{}, err
	}
	return found{title: "Redrives", data: d}, nil
}

func (c *Console) workQueues() []string {
	names := make([]string, len(c.queues))
	for i, q := range c.queues {
		names[i] = q.Name
	}
	return names
}

// wave is one step of a ramp.
type wave struct {
	Name string
	Size int32
	Kind status
}

type runData struct {
	deadletter.Run
	Result  deadletter.Result
	Reasons []leftReason
	Waves   []wave
	State   string // of the letters that are listed
	States  []letterState
	Letters []deadletter.RunLetter
	Limited bool
	// Of the run: what can be done now.
	CanStart, CanPause, CanResume, CanCancel, CanTakeUp bool
	Ended                                               bool
	Before                                              string // what was asked for, for people
}

// Most says when the run stops for its failures.
func (d *runData) Most() string {
	switch m := d.MaxFailures; {
	case m == nil:
		return "for no number of failures"
	case *m == 0:
		return "at the first that fails the same way again"
	default:
		return "when more than " + number(*m) + " fail the same way again"
	}
}

// letterState is a tab of the list.
type letterState struct {
	Name  string
	Count int
}

// leftReason is how many are left out, why, and how to get them.
type leftReason struct {
	Count    int
	Why, How string
}

func runOf(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return id, &statusError{http.StatusBadRequest, strconv.QuoteToASCII(cell(text)) + " is not the id of a redrive", err}
	}
	return id, nil
}

func (c *Console) runPage(r *http.Request) (found, error) {
	id, err := runOf(r.URL.Query().Get("id"))
	if err != nil {
		return found{}, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	d := &runData{}
	if d.Run, err = c.letters.GetRun(ctx, id); err != nil {
		return found{}, err
	}
	if d.Result, err = c.letters.RunResult(ctx, d.Run); err != nil {
		return found{}, err
	}
	d.Reasons, d.Waves, d.States, d.Before = reasons(d.Result.Left), waves(&d.Run), d.letterStates(), c.masks.filterText(d.Filter)
	d.State = r.URL.Query().Get("state")
	if d.State == "" && len(d.States) > 0 {
		d.State = d.States[0].Name
	}
	if d.State != "" {
		if d.Letters, err = c.letters.RunLetters(ctx, id, d.State, lettersOfRun); err != nil {
			return found{}, err
		}
	}
	d.Limited = len(d.Letters) == lettersOfRun
	state := d.Run.State
	d.CanStart, d.CanPause = state == deadletter.RunPlanned && d.Pending > 0, state == deadletter.RunRunning
	d.CanResume = state == deadletter.RunPaused || state == deadletter.RunStopped
	d.CanTakeUp = state == deadletter.RunRunning && d.Owner == ""
	d.Ended = ended(state)
	d.CanCancel = !d.Ended && state != deadletter.RunPlanned
	title := "Redrive of " + cell(d.Queue)
	if state == deadletter.RunPlanned {
		title = "Plan to redrive " + cell(d.Queue)
	}
	return found{title: title, data: d}, nil
}

// letterStates are those in which there are any, what needs somebody first.
func (d *runData) letterStates() (states []letterState) {
	for _, s := range []letterState{
		{"failed", d.Failed}, {"missing", d.Missing}, {"left", d.Left}, {"pending", d.Pending}, {"moved", d.Moved - d.Processed - d.Failed}, {"processed", d.Processed}, {"ineligible", d.Ineligible},
	} {
		if s.Count > 0 {
			states = append(states, s)
		}
	}
	return states
}

// waves are the ramp, and where the run stands in it.
func waves(r *deadletter.Run) (all []wave) {
	for i, size := range r.Ramp {
		w := wave{Name: "Wave " + strconv.Itoa(i+1), Size: size, Kind: status{"none", "to come"}}
		if i == 0 {
			w.Name = "Canary"
		}
		switch {
		case r.Wave > i+1, r.State == deadletter.RunDone:
			w.Kind = status{"ok", "settled"}
		case r.Wave == i+1 && r.State == deadletter.RunRunning:
			w.Kind = status{"busy", "under way"}
		case r.Wave == i+1:
			w.Kind = runStatus(r.State)
		}
		all = append(all, w)
	}
	if len(all) == 0 {
		return nil
	}
	rest := wave{Name: "The rest", Kind: status{"none", "to come"}}
	switch {
	case r.State == deadletter.RunDone:
		rest.Kind = status{"ok", "done"}
	case r.Wave > len(r.Ramp):
		rest.Kind = runStatus(r.State)
	}
	return append(all, rest)
}

// reasons are those for which messages are left out.
func reasons(l deadletter.Left) (list []leftReason) {
	for _, r := range []leftReason{
		{l.NotMatching, "do not match the filter", ""},
		{l.Processed, "are processed already, by the inbox", "Discard them: they have had their effect."},
		{l.Expired, "died before what the inbox remembers: whether they were processed is not known", "Allow it in another plan, and they may be processed a second time."},
		{l.Repeaters, "were redriven three times before", "Include them in another plan."},
		{l.InRun, "belong to another redrive", "Finish or cancel that one."},
		{l.OtherOrigin, "came from another queue", "Redrive them there."},
		{l.Refused, "cannot be sent as they are", ""},
		{l.Missing, "are not in the queue any more", ""},
		{l.Undelivered, "were not taken by the work queue", ""},
		{l.Unknown, "may be in the work queue as well", ""},
		{l.NotReached, "were not moved", ""},
	} {
		if r.Count > 0 {
			list = append(list, r)
		}
	}
	return list
}

// changeRun is what pause, resume, cancel and start share: a run, and where to go on.
func (c *Console) changeRun(change func(r *http.Request, run deadletter.Run) error, done string) func(*http.Request) (next, error) {
	return func(r *http.Request) (next, error) {
		id, err := runOf(r.PostFormValue("id"))
		if err != nil {
			return next{}, err
		}
		run, err := c.letters.GetRun(r.Context(), id)
		if err != nil {
			return next{}, err
		}
		if err := change(r, run); err != nil {
			return next{}, err
		}
		return next{link("/run", "id", id), done}, nil
	}
}

func (c *Console) startRun(r *http.Request, run deadletter.Run) error {
	if run.State != deadletter.RunPlanned {
		return errors.Join(deadletter.ErrRunState, errors.New("it was started already"))
	}
	return c.drive(r, run, nil)
}

func (c *Console) resumeRun(r *http.Request, run deadletter.Run) error {
	var failures *int
	if text := strings.TrimSpace(r.PostFormValue("max-failures")); text != "" {
		n, err := wholeNumber("the most failures", text, 0)
		if err != nil {
			return err
		}
		failures = &n
	}
	return c.drive(r, run, failures)
}

func (c *Console) pauseRun(r *http.Request, run deadletter.Run) error {
	reason, err := reasonOf(r)
	if err != nil {
		return err
	}
	return c.letters.PauseRun(r.Context(), run.ID, c.who(r), reason)
}

func (c *Console) cancelRun(r *http.Request, run deadletter.Run) error {
	reason, err := reasonOf(r)
	if err != nil {
		return err
	}
	return c.letters.CancelRun(r.Context(), run.ID, c.who(r), reason)
}

func (c *Console) dropPlan(r *http.Request) (next, error) {
	id, err := runOf(r.PostFormValue("id"))
	if err != nil {
		return next{}, err
	}
	if _, err := c.letters.GetRun(r.Context(), id); err != nil { // of another vhost there is none
		return next{}, err
	}
	if err := c.letters.DropPlan(r.Context(), id); err != nil {
		return next{}, err
	}
	switch run, err := c.letters.GetRun(r.Context(), id); { // one that was started meanwhile stays, and goes on
	case err == nil:
		return next{}, fmt.Errorf("%w: nothing was dropped, it is %s", deadletter.ErrRunState, run.State)
	case !errors.Is(err, deadletter.ErrNoRun):
		return next{}, err
	}
	return next{"/runs", "dropped"}, nil
}
