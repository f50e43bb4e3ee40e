package deadletter

import (
	"cmp"
	"slices"

	"github.com/google/uuid"

	"github.com/surefoot-mq/surefoot/message"
)

// MaxRedrives is how often a message is redriven before it is held back: what failed after three redrives
// will most likely fail again.
const MaxRedrives = 3

// outcome is what became of a letter, in the audit's words.
type outcome string

const (
	outcomeChosen      outcome = "chosen"
	outcomeUnmatched   outcome = "not matching"
	outcomeAgain       outcome = "dead again in this run"
	outcomeRepeater    outcome = "held back: redriven three times or more"
	outcomeOtherOrigin outcome = "left: it came from another queue"
	outcomeRefused     outcome = "left: it cannot be sent"
	outcomeProcessed   outcome = "skipped: already processed"
	outcomeExpired     outcome = "held back: died before what the inbox remembers"
	outcomeInRun       outcome = "held back: another run has it"
	outcomeChanged     outcome = "left: it died again since the plan"
	outcomeMissing     outcome = "not found: taken or held by somebody else since the plan"
	outcomeBehind      outcome = "held back: an earlier message of its key died again"
	outcomeReturned    outcome = "left: the work queue does not exist"
	outcomeNacked      outcome = "left: the work queue did not take it"
	outcomeUnknown     outcome = "left: outcome unknown, may be in the work queue too"
	outcomeTwice       outcome = "left: in the work queue, and still in the dead-letter queue"
	outcomeRedriven    outcome = "redriven"
	outcomeConfirmed   outcome = "let go: redriven before its process died"
	outcomeDiscarded   outcome = "discarded"
)

// Result is what an operation did, or with DryRun would do. The counts are exact; the lists are bounded.
type Result struct {
	// Run identifies the operation in the audit and, after a redrive, in the messages' sf-redrive-run.
	Run uuid.UUID `json:"run"`
	// Queue is the work queue, DLQ its dead-letter queue.
	Queue  string `json:"queue"`
	DLQ    string `json:"dlq"`
	DryRun bool   `json:"dry_run"`
	// Found is how many letters were there at the start. Later ones are not touched.
	Found int `json:"found"`
	// Done is how many were redriven or discarded.
	Done int `json:"done"`
	// Left is what of Found is still there, by reason.
	Left Left `json:"left"`
	// Groups count Done by type and error class, the largest first, at most 100.
	Groups []Group `json:"groups"`
	// Problems are the first 100 letters that were chosen and stay for a reason of their own.
	Problems []Problem `json:"problems"`
	// HeldBy are the live runs that have messages which were asked for: those are left to them.
	HeldBy []Holding `json:"held_by,omitempty"`
}

// Left counts what stays, by reason.
type Left struct {
	// NotMatching the filter.
	NotMatching int `json:"not_matching"`
	// Repeaters were redriven three times before.
	Repeaters int `json:"repeaters"`
	// Processed were handled already, by the inbox; only of runs.
	Processed int `json:"already_processed"`
	// Expired died before what the inbox remembers: whether they were handled is not known; only of runs.
	Expired int `json:"memory_expired"`
	// InRun belong to another run that has not ended; see [Result.HeldBy].
	InRun int `json:"in_another_run"`
	// Missing were chosen and not found, or died again between the plan and their turn; only of runs.
	Missing int `json:"missing"`
	// OtherOrigin came from another queue: redriving them here would hand them to the wrong consumer.
	OtherOrigin int `json:"other_origin"`
	// Refused cannot be sent as they are.
	Refused int `json:"refused"`
	// Undelivered were not taken by the work queue.
	Undelivered int `json:"undelivered"`
	// Unknown may be in the work queue as well.
	Unknown int `json:"unknown"`
	// NotReached were not looked at: beyond Max, or the operation ended before.
	NotReached int `json:"not_reached"`
}

// Failed counts what was chosen and could not be done.
func (l Left) Failed() int { return l.OtherOrigin + l.Refused + l.Undelivered + l.Unknown }

// Group is how many of one kind.
type Group struct {
	Type       string `json:"type"`
	ErrorClass string `json:"error_class"`
	Count      int    `json:"count"`
}

// Problem is a letter that stays for a reason of its own.
type Problem struct {
	ID     string `json:"id"`
	Type   string `json:"type"`
	Reason string `json:"reason"`
}

// Bounds of the lists in a Result.
const (
	maxProblems = 100
	maxGroups   = 100
)

// count counts a letter that stays.
func (l *Left) count(o outcome) {
	switch o {
	case outcomeUnmatched, outcomeAgain:
		l.NotMatching++
	case outcomeRepeater:
		l.Repeaters++
	case outcomeProcessed:
		l.Processed++
	case outcomeExpired:
		l.Expired++
	case outcomeInRun:
		l.InRun++
	case outcomeMissing, outcomeChanged:
		l.Missing++
	case outcomeBehind:
		l.NotReached++
	case outcomeOtherOrigin:
		l.OtherOrigin++
	case outcomeRefused:
		l.Refused++
	case outcomeReturned, outcomeNacked:
		l.Undelivered++
	case outcomeUnknown, outcomeTwice:
		l.Unknown++
	case outcomeChosen, outcomeRedriven, outcomeConfirmed, outcomeDiscarded: // these go
	}
}

// sum is how many stay for a known reason.
func (l Left) sum() int {
	return l.NotMatching + l.Repeaters + l.Processed + l.Expired + l.InRun + l.Missing + l.OtherOrigin + l.Refused + l.Undelivered + l.Unknown
}

// tally counts groups. What comes after too many different ones is counted together: types are text from messages.
type tally map[[2]string]int

func (t tally) add(f *facts) { t.count(f.typ, f.class, 1) }

func (t tally) count(typ, class string, n int) {
	key := [2]string{message.Clip(typ, 255), message.Clip(class, 64)}
	if _, known := t[key]; !known && len(t) >= maxGroups-1 {
		key = [2]string{"(other)", ""}
	}
	t[key] += n
}

func (t tally) groups() []Group {
	groups := make([]Group, 0, len(t))
	for key, n := range t {
		groups = append(groups, Group{Type: key[0], ErrorClass: key[1], Count: n})
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Type, b.Type), cmp.Compare(a.ErrorClass, b.ErrorClass))
	})
	return groups
}

// Progress is how far an operation is.
type Progress struct {
	// Found letters at the start, Seen so far, Done of them.
	Found, Seen, Done int
	// Blocked says that the broker takes no messages at the moment (memory or disk alarm).
	Blocked bool
}
