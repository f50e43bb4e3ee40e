package deadletter

import (
	"slices"
	"time"

	"github.com/google/uuid"
)

// wave is what one part of a run moves. Letters of one ordering key go in the order of the plan, whatever the order in which they stand:
// a process that died may have left the queue in another one. What has to wait for an earlier letter is held, for another pass.
// There may be a hundred thousand, so they are small and have no pointers. For one goroutine.
type wave struct {
	letters []waveLetter
	byKey   map[uuid.UUID]int32 // places in letters
	lanes   map[uuid.UUID]int32 // by ordering key: places in ahead
	ahead   [][]int32           // those of a lane that have not been moved, by seq, in order
	held    int                 // in this pass
}

type waveLetter struct {
	diedAt int64 // microseconds since 1970, the database's precision; 0: not known
	seq    int32
	lane   int32 // its place in ahead; noLane: none
	moved  bool  // before, by a driver that has gone: what is there may be a copy
	only   bool  // letter of its message, when it was planned
	seen   bool  // in this pass
}

const noLane = -1

func newWave() *wave { return &wave{byKey: map[uuid.UUID]int32{}, lanes: map[uuid.UUID]int32{}} }

// add adds letters in the order of the plan.
func (w *wave) add(key uuid.UUID, orderKey uuid.NullUUID, seq int32, diedAt *time.Time, only, moved bool) {
	l := waveLetter{seq: seq, lane: noLane, only: only, moved: moved}
	if diedAt != nil {
		l.diedAt = diedAt.UnixMicro()
	}
	if orderKey.Valid {
		lane, known := w.lanes[orderKey.UUID]
		if !known {
			lane = int32(len(w.ahead))
			w.lanes[orderKey.UUID], w.ahead = lane, append(w.ahead, nil)
		}
		if l.lane = lane; !moved {
			w.ahead[lane] = append(w.ahead[lane], seq)
		}
	}
	w.byKey[key] = int32(len(w.letters))
	w.letters = append(w.letters, l)
}

// choose says what the run does with a letter.
func (w *wave) choose(f *facts) outcome {
	at, chosen := w.byKey[f.key]
	if !chosen {
		return outcomeUnmatched
	}
	l := &w.letters[at]
	l.seen = true
	if l.diedAt != 0 && f.diedAt.UnixMicro() > l.diedAt {
		w.through(l)
		return outcomeChanged
	}
	if l.lane != noLane && !l.moved && len(w.ahead[l.lane]) > 0 && w.ahead[l.lane][0] < l.seq {
		w.held++
		return outcomeUnmatched
	}
	w.through(l)
	if l.moved && l.only && l.diedAt != 0 && f.diedAt.UnixMicro() == l.diedAt {
		return outcomeConfirmed // this very letter: the record of a move comes behind its confirm
	}
	return outcomeChosen
}

// through lets the next of its key go.
func (w *wave) through(l *waveLetter) {
	if l.lane == noLane {
		return
	}
	ahead := &w.ahead[l.lane]
	if len(*ahead) > 0 && (*ahead)[0] == l.seq {
		*ahead = (*ahead)[1:]
		return
	}
	*ahead = slices.DeleteFunc(*ahead, func(seq int32) bool { return seq == l.seq })
}

// done says that every letter was seen, and none waits for another pass.
func (w *wave) done() bool {
	return w.held == 0 && !slices.ContainsFunc(w.letters, func(l waveLetter) bool { return !l.seen })
}

// again begins another pass, and says whether one is needed. A letter that a whole walk over the queue has not seen is not there: nobody
// waits for it.
func (w *wave) again(whole bool) bool {
	needed := w.held > 0 || !whole && !w.done()
	for i := range w.letters {
		l := &w.letters[i]
		if whole && !l.seen {
			w.through(l)
		}
		l.seen = false
	}
	w.held = 0
	return needed
}
