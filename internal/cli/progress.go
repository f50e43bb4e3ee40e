package cli

import (
	"fmt"
	"sync"
	"time"
)

// How often progress is told: a line on a terminal is rewritten, elsewhere each is one more line in a log.
const (
	redraw  = 100 * time.Millisecond
	newLine = 5 * time.Second
)

// progress tells on stderr how far a long command is. It is safe for concurrent use.
type progress struct {
	s    *session
	verb string

	mu          sync.Mutex
	done, total int
	told        time.Time
	drawn       bool
}

// progress begins to tell; verb is what has happened to each, such as "redriven".
func (s *session) progress(verb string) *progress {
	return &progress{s: s, verb: verb, told: time.Now()}
}

// reach notes how many are done by now, and of how many, 0 where that is not known. It tells if it is time.
func (p *progress) reach(done, total int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done, p.total = done, total
	every := newLine
	if p.s.env.StderrTTY {
		every = redraw
	}
	if time.Since(p.told) >= every {
		p.tell()
	}
}

// end leaves the line that a terminal shows. The count itself is the command's to tell.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn {
		p.tell()
		fmt.Fprintln(p.s.env.Stderr)
	}
}

func (p *progress) tell() {
	p.told = time.Now()
	text := fmt.Sprintf("%s %d", p.verb, p.done)
	if p.total > 0 {
		text += fmt.Sprintf(" of %d (%d %%)", p.total, p.done*100/p.total)
	}
	if p.s.env.StderrTTY {
		p.drawn = true
		fmt.Fprintf(p.s.env.Stderr, "\r%s\x1b[K", text)
		return
	}
	fmt.Fprintln(p.s.env.Stderr, text)
}
