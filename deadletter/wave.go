package deadletter

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// wave is what one part of a run moves. Letters of one ordering key go in the order of the plan, whatever the order in which they stand:
// a process that died may have left the queue in another one. What has to wait for an earlier letter is held, for another pass.
// For one goroutine.
type wave struct {
	letters map[uuid.UUID]*waveLetter
	ahead   map[uuid.UUID][]int32 // by ordering key: those that have not been moved, in order
	held    int                   // in this pass
}

type waveLetter struct {
	seq      int32
	orderKey uuid.NullUUID
	diedAt   time.Time // zero: not known
	moved    bool      // before, by a driver that has gone: what is there may be a copy
	seen     bool      // in this pass
}

// add adds letters in the order of the plan.
func (w *wave) add(key uuid.UUID, l waveLetter) {
	w.letters[key] = &l
	if l.orderKey.Valid && !l.moved {
		w.ahead[l.orderKey.UUID] = append(w.ahead[l.orderKey.UUID], l.seq)
	}
}

// choose says what the run does with a letter.
func (w *wave) choose(f *facts) outcome {
	l, chosen := w.letters[f.key]
	if !chosen {
		return outcomeUnmatched
	}
	l.seen = true
	if !l.diedAt.IsZero() && f.diedAt.Truncate(time.Microsecond).After(l.diedAt) { // the database's precision
		w.through(l)
		return outcomeChanged
	}
	if ahead := w.ahead[l.orderKey.UUID]; l.orderKey.Valid && !l.moved && len(ahead) > 0 && ahead[0] < l.seq {
		w.held++
		return outcomeUnmatched
	}
	w.through(l)
	return outcomeChosen
}

// through lets the next of its key go.
func (w *wave) through(l *waveLetter) {
	if !l.orderKey.Valid {
		return
	}
	key := l.orderKey.UUID
	if ahead := w.ahead[key]; len(ahead) > 0 && ahead[0] == l.seq {
		w.ahead[key] = ahead[1:]
		return
	}
	w.ahead[key] = slices.DeleteFunc(w.ahead[key], func(seq int32) bool { return seq == l.seq })
}

// again begins another pass, and says whether one is needed. A letter that was not seen is not there: nobody waits for it.
func (w *wave) again() bool {
	needed := w.held > 0
	for _, l := range w.letters {
		if !l.seen {
			w.through(l)
		}
		l.seen = false
	}
	w.held = 0
	return needed
}
