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
	s     *session
	verb  string
	total int

	mu    sync.Mutex
	count int
	told  time.Time
	drawn bool
}

// progress begins to tell; verb is what has happened to each, such as "redriven", and total 0 is not known.
func (s *session) progress(verb string, total int) *progress {
	return &progress{s: s, verb: verb, total: total, told: time.Now()}
}

// add counts n more and tells if it is time.
func (p *progress) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count += n
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
	text := fmt.Sprintf("%s %d", p.verb, p.count)
	if p.total > 0 {
		text += fmt.Sprintf(" of %d (%d %%)", p.total, p.count*100/p.total)
	}
	if p.s.env.StderrTTY {
		p.drawn = true
		fmt.Fprintf(p.s.env.Stderr, "\r%s\x1b[K", text)
		return
	}
	fmt.Fprintln(p.s.env.Stderr, text)
}
