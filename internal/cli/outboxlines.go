package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

const (
	// maxLine bounds a line of input: the largest payload in base64, and everything else.
	maxLine = 32 << 20
	// maxFaults is how many faulty lines are named.
	maxFaults = 20
)

// lineFaults names the first faulty lines and counts the rest.
type lineFaults struct {
	named []error
	more  int
}

func (f *lineFaults) add(err error) {
	if len(f.named) == maxFaults {
		f.more++
		return
	}
	f.named = append(f.named, err)
}

func (f *lineFaults) err() error {
	if len(f.named) == 0 {
		return nil
	}
	lines := []string{"the input has faults:"}
	for _, fault := range f.named {
		lines = append(lines, fault.Error())
	}
	if f.more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more lines", f.more))
	}
	hint := ""
	if slices.ContainsFunc(f.named, func(err error) bool { return errors.Is(err, errUnroutable) }) {
		hint = "correct the type, or bind a queue (`surefoot topology plan` shows what is missing); --allow-unroutable enqueues it all the same"
	}
	return usageErrorf(hint, "%s", strings.Join(lines, "\n  "))
}

// line is a line of input that is not blank, or the error that ended the input.
type line struct {
	number int
	text   []byte
	err    error
}

// readLines reads in a goroutine of its own, because a read of stdin cannot be interrupted; the end of ctx ends
// the wait, and may leave one read behind.
func readLines(ctx context.Context, input io.Reader) <-chan line {
	lines := make(chan line)
	read := make(chan line)
	go scanLines(ctx, input, read)
	go func() {
		defer close(lines)
		for {
			select {
			case <-ctx.Done():
				return
			case l, ok := <-read:
				if !ok {
					return
				}
				select {
				case <-ctx.Done():
					return
				case lines <- l:
				}
			}
		}
	}()
	return lines
}

func scanLines(ctx context.Context, input io.Reader, out chan<- line) {
	defer close(out)
	send := func(l line) bool {
		select {
		case <-ctx.Done():
			return false
		case out <- l:
			return true
		}
	}
	scanner := bufio.NewScanner(input)
	scanner.Buffer(make([]byte, 64<<10), maxLine)
	number := 0
	for scanner.Scan() {
		number++
		text := scanner.Bytes()
		if number == 1 {
			text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
		}
		if text = bytes.TrimSpace(text); len(text) > 0 && !send(line{number: number, text: bytes.Clone(text)}) {
			return
		}
	}
	switch err := scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		send(line{err: usageErrorf("", "line %d is longer than %d bytes", number+1, maxLine)})
	case err != nil:
		send(line{err: fmt.Errorf("read input after line %d: %w", number, err)})
	}
}
