package model

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"
)

// step is one action and where it leads.
type step struct {
	label  label
	next   state
	broken string // the requirement that it breaks
}

// label names a step by the relay and the row, transaction or key that it is about.
type label struct {
	action uint8
	relay  int8 // -1: none
	what   int8 // -1: nothing
}

// node is how a state was first reached.
type node struct {
	parent  int32
	label   label
	swapped bool // the relays' names were exchanged on the way here
}

// result is what a search has found.
type result struct {
	states, steps int
	depth         int
	took          time.Duration
	broken        string // "": nothing
	trace         []string
}

func (r result) String() string {
	text := fmt.Sprintf("%d states, %d steps, depth %d, %s", r.states, r.steps, r.depth, r.took.Round(time.Millisecond))
	if r.broken != "" {
		text += fmt.Sprintf("\n%s:\n  %s", r.broken, strings.Join(r.trace, "\n  "))
	}
	return text
}

// search walks through all reachable states, breadth first, so that a trace is as short as can be. It stops at the
// first requirement that is broken.
type search struct {
	model *model
	seed  maphash.Seed
	index map[state]int32
	nodes []node
	good  []int32
	// The steps that are not faults, backwards, for the second half of G1.
	from, to []int32
}

func (m *model) explore() result {
	began := time.Now()
	s := &search{model: m, seed: maphash.MakeSeed(), index: map[state]int32{}}
	r := s.forward()
	if r.broken == "" {
		s.backward(&r)
	}
	r.states, r.took = len(s.nodes), time.Since(began)
	return r
}

// visit returns the number of a state, and whether it is new.
func (s *search) visit(next *state, parent int32, l label) (int32, bool) {
	swapped := !s.model.alone && maphash.Comparable(s.seed, next.relays[0]) > maphash.Comparable(s.seed, next.relays[1])
	if swapped {
		*next = next.mirrored()
	}
	if i, seen := s.index[*next]; seen {
		return i, false
	}
	i := int32(len(s.nodes))
	s.index[*next] = i
	s.nodes = append(s.nodes, node{parent, l, swapped})
	if s.model.done(next) {
		s.good = append(s.good, i)
	}
	return i, true
}

func (s *search) forward() (r result) {
	first := s.model.start()
	s.visit(&first, -1, label{})
	e := &expansion{model: s.model}
	level, numbers := []state{first}, []int32{0}
	for len(level) > 0 {
		var nextLevel []state
		var nextNumbers []int32
		for at := range level {
			steps := e.steps(&level[at])
			r.steps += len(steps)
			for i := range steps {
				st := &steps[i]
				if st.broken != "" {
					r.broken, r.trace = st.broken, append(s.trace(numbers[at]), s.line(st.label, s.parity(numbers[at])))
					return r
				}
				n, isNew := s.visit(&st.next, numbers[at], st.label)
				if !actions[st.label.action].fault {
					s.from, s.to = append(s.from, numbers[at]), append(s.to, n)
				}
				if isNew {
					nextLevel, nextNumbers = append(nextLevel, st.next), append(nextNumbers, n)
				}
			}
		}
		level, numbers = nextLevel, nextNumbers
		r.depth++
	}
	return r
}

// backward looks for a state from which no committed row can be brought to its end without another fault, or
// rather without luck: a fault may well mend what a fault has broken.
func (s *search) backward(r *result) {
	first := make([]int32, len(s.nodes)+1) // steps into a state, as ranges of origin
	for _, n := range s.to {
		first[n+1]++
	}
	for i := range s.nodes {
		first[i+1] += first[i]
	}
	origin, fill := make([]int32, len(s.to)), make([]int32, len(s.nodes))
	for i, n := range s.to {
		origin[first[n]+fill[n]] = s.from[i]
		fill[n]++
	}
	ends := make([]bool, len(s.nodes))
	queue := s.good
	for _, n := range queue {
		ends[n] = true
	}
	for len(queue) > 0 {
		n := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		for _, before := range origin[first[n]:first[n+1]] {
			if !ends[before] {
				ends[before] = true
				queue = append(queue, before)
			}
		}
	}
	for i := range s.nodes {
		if !ends[i] {
			r.broken, r.trace = brokenEnd, s.trace(int32(i))
			return
		}
	}
}

// parity tells whether the relays' names in a state are exchanged against those in the first one.
func (s *search) parity(n int32) bool {
	swapped := false
	for ; n >= 0; n = s.nodes[n].parent {
		swapped = swapped != s.nodes[n].swapped
	}
	return swapped
}

// trace is the way to a state.
func (s *search) trace(n int32) []string {
	var way []int32
	for ; n > 0; n = s.nodes[n].parent {
		way = append(way, n)
	}
	var lines []string
	for _, i := range slices.Backward(way) {
		at := s.nodes[i]
		lines = append(lines, s.line(at.label, s.parity(at.parent)))
	}
	return lines
}

func (s *search) line(l label, swapped bool) string {
	a := actions[l.action]
	text := a.text
	if l.relay >= 0 {
		name := "A"
		if (l.relay == 1) != swapped {
			name = "B"
		}
		text = name + " " + text
	}
	if l.what >= 0 {
		text += fmt.Sprintf(" %s%d", a.about, l.what+1)
	}
	if a.fault {
		text = "! " + text
	}
	return fmt.Sprintf("%-70s %s", text, strings.Join(a.code, ", "))
}
