package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/timeline"
	"github.com/surefoot-mq/surefoot/message"
)

// lookDepth is how deep a dead-letter queue may be that is looked into for one message's attempts without being asked to.
const lookDepth = 10_000

type messageData struct {
	ID       string
	Timeline *timeline.Timeline
	None     string // why nothing is known
}

func (c *Console) messagePage(r *http.Request) (found, error) {
	d := messageData{ID: strings.TrimSpace(r.URL.Query().Get("id"))}
	if d.ID == "" {
		return found{title: "One message’s way", data: d}, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), pageTimeout)
	defer cancel()
	t, err := timeline.Of(ctx, c.opts.Pool, c.opts.Schema, d.ID)
	unknown, isUnknown := errors.AsType[*timeline.UnknownError](err)
	switch {
	case errors.Is(err, timeline.ErrBadID):
		return found{}, bad("%s", err)
	case isUnknown:
		d.None = line(unknown)
		return found{title: "One message’s way", data: d}, nil
	case err != nil:
		return found{}, err
	}
	for _, letter := range t.Letters {
		c.addAttempts(r, &t, letter)
	}
	d.Timeline = &t
	return found{title: "Message " + cell(d.ID), data: d}, nil
}

// addAttempts looks for the message where the index has it: its attempts stand in it alone. What keeps it from that is said.
func (c *Console) addAttempts(r *http.Request, t *timeline.Timeline, at timeline.Letter) {
	unknown := func(why string) {
		t.Unknown = append(t.Unknown, "Its attempts, which stand in the message in "+deadletter.DLQ(at.Queue)+": "+why)
	}
	if at.Depth > lookDepth {
		unknown(fmt.Sprintf("the queue holds about %s, and is not walked over for this page.", number(at.Depth)))
		return
	}
	letters, err := c.look(r, choice{Queue: at.Queue, IDs: []string{t.ID}}, 1, -1)
	switch {
	case err != nil:
		unknown(err.Error())
	case len(letters) == 0:
		unknown("the message is not there any more, or another broker's: the index is behind.")
	default:
		t.AddLetter(at.Queue, foundOf(&letters[0]))
	}
}

func foundOf(l *deadletter.Letter) timeline.Found {
	f := timeline.Found{Type: l.Type, Key: l.Key, Source: l.Source, CorrelationID: l.CorrelationID, CausationID: l.CausationID, TraceParent: l.TraceParent}
	if l.Failure == nil {
		return f
	}
	for _, a := range l.Failure.Log {
		f.Attempts = append(f.Attempts, message.Attempt{Number: a.Number, At: a.At.Time, Class: a.Class, Type: a.Type, Message: a.Message, Host: a.Host})
	}
	return f
}
