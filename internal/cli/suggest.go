package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/surefoot-mq/surefoot/deadletter"
	"github.com/surefoot-mq/surefoot/internal/config"
)

// required is something that a command cannot do without.
type required struct {
	name  string // as it is typed: --reason
	given bool
}

// missing is the error of a command that lacks something; it names all of that at once. Nil when nothing is missing.
func missing(verb, hint string, all ...required) error {
	var names []string
	for _, r := range all {
		if !r.given {
			names = append(names, r.name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	last := len(names) - 1
	text := names[last]
	if last > 0 {
		text = strings.Join(names[:last], ", ") + " and " + text
	}
	return usageErrorf(hint, "%s needs %s", verb, text)
}

// near is a hint with the known name that was most likely meant: one with few other letters, else the only one that has the text in it.
// Without such a name it is the other hint.
func near(unknown string, known []string, otherwise string) string {
	known = slices.DeleteFunc(slices.Clone(known), func(name string) bool { return name == unknown })
	name := config.Nearest(unknown, known)
	if name == "" && len(unknown) >= 3 {
		with := slices.DeleteFunc(known, func(name string) bool { return !strings.Contains(name, unknown) })
		if len(with) == 1 {
			name = with[0]
		}
	}
	if name == "" {
		return otherwise
	}
	return "did you mean " + name + "?"
}

// nearQueue is near for a work queue, or its dead-letter queue; empty for one that is known, and without a likely name.
func (s *session) nearQueue(ctx context.Context, queue string) string {
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	work, known := strings.TrimSuffix(queue, deadletter.Suffix), s.completeQueues(ctx, nil)
	if slices.Contains(known, work) {
		return ""
	}
	return near(work, known, "")
}

// suggest adds to the error of a command whose --queue does not exist the queue that was most likely meant.
func (s *session) suggest(cmd *cobra.Command, err error) error {
	flag := cmd.Flags().Lookup("queue")
	if flag == nil || flag.Value.String() == "" || !errors.Is(err, deadletter.ErrNoDLQ) && !errors.Is(err, deadletter.ErrNoQueue) {
		return err
	}
	hint := s.nearQueue(cmd.Context(), flag.Value.String())
	if hint == "" {
		return err
	}
	return &exitError{code: exitCode(cmd.Context(), err), err: err, hint: hint}
}

// doubtQueue says of an empty list that its queue is not known, when another one was likely meant.
func (s *session) doubtQueue(ctx context.Context, queue string, found int) {
	if queue == "" || found > 0 {
		return
	}
	if hint := s.nearQueue(ctx, queue); hint != "" {
		s.note("queue %s is not known; %s", queue, hint)
	}
}

// doubtGroup says of a choice by fingerprint that chose nothing which cause was likely meant.
func (s *session) doubtGroup(ctx context.Context, d *deadletter.DeadLetters, queue, fingerprint string, chosen int) {
	if fingerprint == "" || chosen > 0 {
		return
	}
	groups, _, err := d.Groups(ctx, deadletter.GroupsRequest{Queue: queue, Limit: 1000})
	if err != nil {
		return
	}
	var known []string
	for _, g := range groups {
		known = append(known, g.Fingerprint)
	}
	if hint := near(fingerprint, known, "see `surefoot dlq groups --queue "+queue+"`"); !slices.Contains(known, fingerprint) {
		s.note("no group has the fingerprint %s; %s", fingerprint, hint)
	}
}

const runsHint = "see `surefoot dlq runs ls`"

// findRun reads the run of an id. Of one that is not known it says which was likely meant: ids are long, and get cut off.
func (s *session) findRun(ctx context.Context, d *deadletter.DeadLetters, text string) (deadletter.Run, error) {
	id, err := runID(text)
	if err == nil {
		run, err := d.GetRun(ctx, id)
		if !errors.Is(err, deadletter.ErrNoRun) {
			return run, err
		}
	}
	runs, unread := d.Runs(ctx, "", true, 1000)
	if unread != nil {
		return deadletter.Run{}, cmp.Or(err, unread)
	}
	var known []string
	for _, r := range runs {
		known = append(known, r.ID.String())
	}
	hint := near(text, known, runsHint)
	if err != nil {
		return deadletter.Run{}, usageErrorf(hint, "%w", err)
	}
	return deadletter.Run{}, &exitError{code: ExitFailed, err: deadletter.ErrNoRun, hint: hint}
}

func runID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil {
		return id, usageErrorf(runsHint, "%.100q is not the id of a run", text)
	}
	return id, nil
}
