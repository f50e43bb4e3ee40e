package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/access"
	"github.com/surefoot-mq/surefoot/internal/telemetry"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	// pageTimeout bounds what a page asks for while somebody waits for it.
	pageTimeout = 10 * time.Second
	// lookTimeout bounds a look into a queue, which may pass over all that is there.
	lookTimeout = 25 * time.Second
	// lookWait is how long a look waits for others who work on the queue.
	lookWait = 3 * time.Second

	lettersLimit = 50
	maxLetters   = 500
	maxPayload   = 64 << 10
)

// groupRow is a group with what the page says of it.
type groupRow struct {
	deadletter.FailureGroup
	Trend status
}

type groupsData struct {
	Queue   string
	Queues  []string
	Groups  []groupRow
	Scanned []deadletter.Scanned
	Limited bool
	Total   int
	Old     bool // the database is away: what was known before
	Dead    int  // in the queues, by the broker; -1: not known
}

func (c *Console) groupsPage(r *http.Request) (found, error) {
	queue := strings.TrimSuffix(r.URL.Query().Get("queue"), deadletter.Suffix)
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	f := c.known.get()
	d := groupsData{Queue: queue, Dead: -1}
	groups, scanned, err := c.letters.Groups(ctx, deadletter.GroupsRequest{Queue: queue, Limit: maxGroups})
	if err != nil {
		if !f.Groups.Known() {
			return found{}, fmt.Errorf("the index of dead letters cannot be read: %w", err)
		}
		groups, scanned, d.Old = f.Groups.Value.Groups, f.Groups.Value.Scanned, true
	}
	if queue == "" && err == nil {
		c.known.setGroups(groupFacts{groups, scanned})
	}
	for _, q := range c.queues {
		d.Queues = append(d.Queues, q.Name)
	}
	for _, g := range groups {
		if queue == "" || g.Queue == queue {
			d.Groups = append(d.Groups, groupRow{g, trend(&g)})
			d.Total += g.Messages
		}
	}
	for _, s := range scanned {
		if queue == "" || s.Queue == queue {
			d.Scanned = append(d.Scanned, s)
		}
	}
	if f.Broker.Known() {
		d.Dead = 0
		for _, row := range c.rows(&f) {
			if queue == "" || row.Name == queue {
				d.Dead += row.Dead
			}
		}
	}
	d.Limited = len(groups) == maxGroups
	return found{title: "Dead letters", data: d}, nil
}

// trend compares the last hour with the one before.
func trend(g *deadletter.FailureGroup) status {
	switch {
	case g.LastHour == 0:
		return status{"none", "quiet for an hour"}
	case g.LastHour > g.HourBefore:
		return status{"bad", fmt.Sprintf("more: %s in the last hour, %s before", number(g.LastHour), number(g.HourBefore))}
	case g.LastHour == g.HourBefore:
		return status{"warn", fmt.Sprintf("steady: %s in the last hour", number(g.LastHour))}
	}
	return status{"warn", fmt.Sprintf("less: %s in the last hour, %s before", number(g.LastHour), number(g.HourBefore))}
}

// choice is what is chosen of a dead-letter queue, as it stands in an address: the flags of the command line.
type choice struct {
	Queue, Type, Class, Contains, Fingerprint, Since string
	IDs, Where                                       []string
}

func choiceOf(q url.Values) choice {
	list := func(name string) (values []string) { // one a line, as forms have them
		for _, text := range q[name] {
			for v := range strings.Lines(text) {
				if v = strings.TrimRight(v, "\r\n"); v != "" {
					values = append(values, v)
				}
			}
		}
		return values
	}
	return choice{
		Queue: strings.TrimSuffix(q.Get("queue"), deadletter.Suffix), Type: q.Get("type"), Class: q.Get("error-class"), Contains: strings.TrimSpace(q.Get("error-contains")),
		Fingerprint: q.Get("fingerprint"), Since: strings.TrimSpace(q.Get("since")), IDs: list("id"), Where: list("where"),
	}
}

// Link is the address of a page with this choice. Templates take it whole: of a part they would escape what joins the parameters.
func (c choice) Link(path string) string {
	if query := c.query(); query != "" {
		path += "?" + query
	}
	return path
}

func (c choice) query() string {
	q := url.Values{}
	for name, value := range map[string]string{
		"queue": c.Queue, "type": c.Type, "error-class": c.Class, "error-contains": c.Contains, "fingerprint": c.Fingerprint, "since": c.Since,
	} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for _, id := range c.IDs {
		q.Add("id", id)
	}
	for _, where := range c.Where {
		q.Add("where", where)
	}
	return q.Encode()
}

// Narrow says that not all of the queue is chosen.
func (c choice) Narrow() bool {
	return c.Type != "" || c.Class != "" || c.Contains != "" || c.Fingerprint != "" || c.Since != "" || len(c.IDs) > 0 || len(c.Where) > 0
}

// filter reads the choice.
func (c choice) filter(now time.Time) (deadletter.Filter, error) {
	f := deadletter.Filter{Type: c.Type, ErrorClass: c.Class, ErrorContains: c.Contains, Fingerprint: c.Fingerprint, IDs: c.IDs}
	for _, text := range c.Where {
		w, err := deadletter.ParseWhere(strings.TrimSpace(text))
		if err != nil {
			return f, err
		}
		f.Where = append(f.Where, w)
	}
	var err error
	f.Since, err = deadletter.ParseSince(c.Since, now)
	return f, err
}

type lettersData struct {
	choice
	Letters []deadletter.Letter
	Limit   int
	Queues  []string
	Failed  string
	Depth   int // -1: not known
	Rabbit  string
}

// lettersPage looks into a queue. That it cannot is part of the page, so that the choice stays.
func (c *Console) lettersPage(r *http.Request) (found, error) {
	q := r.URL.Query()
	d := lettersData{choice: choiceOf(q), Limit: lettersLimit, Depth: -1}
	if n, err := strconv.Atoi(q.Get("limit")); err == nil && n > 0 {
		d.Limit = min(n, maxLetters)
	}
	for _, queue := range c.queues {
		d.Queues = append(d.Queues, queue.Name)
	}
	if d.Queue == "" && len(d.Queues) > 0 {
		d.Queue = d.Queues[0]
	}
	f := c.known.get()
	if depth, counted := f.Broker.Value.Depths[deadletter.DLQ(d.Queue)]; counted {
		d.Depth = depth.Ready
	}
	d.Rabbit = c.rabbitQueue(deadletter.DLQ(d.Queue))
	var err error
	if d.Queue == "" {
		err = errors.New("the configuration of this console names no queues")
	} else {
		d.Letters, err = c.look(r, d.choice, d.Limit, -1)
	}
	if err != nil {
		d.Failed = line(err)
	}
	return found{title: "Messages in " + cell(deadletter.DLQ(d.Queue)), data: d}, nil
}

// look shows letters; a few looks at a time, for each holds its queue.
func (c *Console) look(r *http.Request, choice choice, limit, preview int) ([]deadletter.Letter, error) {
	filter, err := c.filterOf(r, choice)
	if err != nil {
		return nil, err
	}
	leave, err := c.looks.take(c.gate.Key(r))
	if err != nil {
		return nil, err
	}
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), lookTimeout)
	defer cancel()
	return c.letters.Show(ctx, deadletter.ShowRequest{Queue: choice.Queue, Filter: filter, Limit: limit, Preview: preview, Who: c.who(r), Wait: lookWait})
}

type letterData struct {
	Queue, ID string
	Letter    *deadletter.Letter
	Payload   bool // it was asked for
	Revealed  bool // and as it is
	Whole     bool // all of it is masked
	Text      string
	Response  string
	Timeline  []attemptRow
	Headers   []header
	Trace     string
	Rabbit    string
}

// attemptRow is one line of a message's history here.
type attemptRow struct {
	Kind   string // attempt, redrive, broker
	Title  string
	At     time.Time
	Since  string // since the line before
	Text   string
	Detail string
}

type header struct{ Name, Value string }

func (c *Console) letterPage(r *http.Request) (found, error) {
	q := r.URL.Query()
	return c.letter(r, letterData{Queue: queueOf(q), ID: q.Get("id"), Payload: q.Get("payload") == "1"})
}

func queueOf(v url.Values) string { return strings.TrimSuffix(v.Get("queue"), deadletter.Suffix) }

// letter looks for one message.
func (c *Console) letter(r *http.Request, d letterData) (found, error) {
	if d.Queue == "" || d.ID == "" {
		return found{}, &statusError{http.StatusBadRequest, "name a queue and the id of a message", nil}
	}
	preview := -1
	if d.Payload {
		preview = maxMaskable + 1
	}
	letters, err := c.look(r, choice{Queue: d.Queue, IDs: []string{d.ID}}, 1, preview)
	switch {
	case err != nil:
		return found{}, err
	case len(letters) == 0:
		return found{}, fmt.Errorf("%w: %s is not in %s any more; its audit and its timeline may say where it went", deadletter.ErrNoLetter, cell(d.ID), deadletter.DLQ(d.Queue))
	}
	l := &letters[0]
	d.Letter, d.Timeline, d.Trace, d.Rabbit = l, attemptsOf(l), telemetry.TraceID(l.TraceParent), c.rabbitQueue(deadletter.DLQ(d.Queue))
	c.open(&d)
	return found{title: "Message " + cell(d.ID), data: d}, nil
}

// open takes what may be shown of the message.
func (c *Console) open(d *letterData) {
	l, m := d.Letter, c.masks
	if d.Payload && d.Revealed {
		d.Text = string(l.Payload.Bytes())
	} else if d.Payload {
		d.Text, d.Whole = m.body(l.Payload.Bytes())
	}
	d.Text = message.Clip(d.Text, maxPayload)
	for _, name := range sortedKeys(l.UserHeaders) {
		value := m.header(name, l.UserHeaders[name])
		if d.Revealed {
			value = fmt.Sprint(l.UserHeaders[name])
		}
		d.Headers = append(d.Headers, header{name, value})
	}
	if l.Failure == nil {
		return
	}
	d.Response = l.Failure.Response
	if !d.Revealed {
		d.Response = m.text(d.Response)
	}
}

// filterOf reads the choice. By conditions on masked fields one could find out what they are.
func (c *Console) filterOf(r *http.Request, choice choice) (deadletter.Filter, error) {
	if access.From(r.Context()).Role < access.Admin {
		for _, where := range choice.Where {
			if name, isMasked := c.masks.field(where); isMasked {
				return deadletter.Filter{}, &statusError{http.StatusForbidden, "the field " + cell(name) + " is masked: to choose by it needs the role admin", nil}
			}
		}
	}
	return choice.filter(time.Now())
}

// attemptsOf are the attempts in their order, the last redrive among them.
func attemptsOf(l *deadletter.Letter) (rows []attemptRow) {
	add := func(row attemptRow) {
		if n := len(rows); n > 0 && !rows[n-1].At.IsZero() && row.At.After(rows[n-1].At) {
			row.Since = "+" + span(row.At.Sub(rows[n-1].At))
		}
		rows = append(rows, row)
	}
	redriven := l.RedrivenAt.Time
	redrive := func() {
		add(attemptRow{Kind: "redrive", Title: "Redriven", At: redriven, Text: "sent back to its queue, attempts 0 again", Detail: l.RedriveRun})
		redriven = time.Time{}
	}
	if f := l.Failure; f != nil {
		for _, a := range f.Log {
			if !redriven.IsZero() && !a.At.Time.Truncate(time.Second).Before(redriven) { // the mark of a redrive has whole seconds
				redrive()
			}
			add(attemptRow{Kind: "attempt", Title: fmt.Sprintf("Attempt %d", a.Number), At: a.At.Time, Text: classed(a.Class, a.Message), Detail: a.Host})
		}
	}
	if !redriven.IsZero() {
		redrive()
	}
	if d := l.Death; d != nil {
		add(attemptRow{Kind: "broker", Title: "Dead-lettered by RabbitMQ", At: d.At.Time, Text: d.Reason + " in " + d.Queue})
	}
	return rows
}

// classed puts the class before an error's text, unless that begins with it.
func classed(class, text string) string {
	if class == "" || strings.HasPrefix(text, class) {
		return text
	}
	return class + ": " + text
}
