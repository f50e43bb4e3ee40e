package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// question is what a person is asked before something is changed.
type question struct {
	// Verb is what will be done: "redrive".
	Verb string
	// Count is to how many. Zero is not asked about.
	Count int
	// Thing is what they are, in the singular: "message". Empty when Target says it all.
	Thing string
	// Target is where: "orders.saga.dlq"; without a Thing what: "queue orders.saga".
	Target string
}

func (q question) String() string {
	text := q.Verb
	if q.Thing != "" {
		text += " " + counted(q.Count, q.Thing)
		if q.Target != "" {
			text += " of"
		}
	}
	if q.Target != "" {
		text += " " + q.Target
	}
	return Escape(text, maxCell)
}

// confirm asks before something is changed, unless --yes was given. It returns nil only for a yes. Without
// a terminal it never waits for an answer that cannot come.
func (s *session) confirm(ctx context.Context, q question) error {
	if s.yes || q.Count == 0 {
		return nil
	}
	if !s.env.StdinTTY || !s.env.StderrTTY {
		return usageErrorf("give --yes to go ahead, or --dry-run to look", "not asked, because there is no terminal: %s?", q)
	}
	fmt.Fprintf(s.env.Stderr, "%s? [y/N] ", q)
	answer, err := s.readLine(ctx, maxCell)
	if err != nil {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return usageErrorf("", "declined: nothing was changed")
}

// readLine reads a line of stdin, of at most so many bytes; the end of ctx ends the wait, and leaves the read behind.
func (s *session) readLine(ctx context.Context, most int64) (string, error) {
	type result struct {
		line string
		err  error
	}
	read := make(chan result, 1)
	go func() {
		line, err := bufio.NewReader(io.LimitReader(s.env.Stdin, most)).ReadString('\n')
		read <- result{line, err}
	}()
	select {
	case <-ctx.Done():
		return "", fmt.Errorf("wait for an answer: %w", ctx.Err())
	case got := <-read:
		if got.err != nil && !errors.Is(got.err, io.EOF) {
			return "", fmt.Errorf("read the answer: %w", got.err)
		}
		return got.line, nil
	}
}
