package console

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/internal/access"
)

// MaxStreamsEach is the most open pages of one person that are told of news, MaxRequestsEach the most requests and MaxLooksEach the most looks.
const (
	MaxStreamsEach  = maxStreamsEach
	MaxRequestsEach = maxRequestsEach
	MaxLooksEach    = maxLooksEach
)

// Rest is how long an asker waits after an answer.
var Rest = rest //nolint:gochecknoglobals // a function

// Health is what the overview says in detail of a service that answers and was last known at some time.
func Health(known time.Time) string {
	return health("PostgreSQL", known, nil, lateFrom, "schema shop").Detail
}

// MaxRequests is the most at a time.
const MaxRequests = maxRequests

// MaxLogins is the most logins at a time.
const MaxLogins = maxLogins

// Remember makes a console remember an hour that it has not seen: for pictures.
func (c *Console) Remember() {
	h := c.history
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	var past []sample
	for i := range historyLength - 1 {
		x := float64(i)
		wave := 42 + 9*math.Sin(x/21) + 4*math.Sin(x/3.1)
		s := sample{
			at: now.Add(time.Duration(i-historyLength) * historyStep), enqueued: wave, published: wave + 2*math.Sin(x/2), handled: 0.97*wave + 3*math.Cos(x/4),
			pending: 2, outboxAge: 0.05 + 0.04*math.Abs(math.Sin(x/5)), ready: math.Round(6 + 3*math.Sin(x/7)),
		}
		if i > 190 && i < 225 { // a pause of the handlers
			s.handled, s.ready = nan(), 6+(x-190)*22
			s.handled = 3
		} else if i >= 225 && i < 262 {
			s.ready, s.handled = max(6, 776-(x-225)*21), wave+19
		}
		s.dead, s.retrying = 0, math.Round(2+2*math.Sin(x/9))
		if i > 300 {
			s.dead, s.deadAge = math.Min(44, math.Round((x-300)*0.9)), (x-300)*10
		}
		s.queues = [][3]float64{{s.ready, s.retrying, s.dead}, {1, 0, 0}}
		past = append(past, s)
	}
	h.samples = append(past, h.samples...)
}

// Passage is what was seen of a queue.
type Passage struct{ p passage }

// NewPassage has seen nothing.
func NewPassage() *Passage { return &Passage{} }

// See takes statistics.
func (p *Passage) See(at time.Time, counter, in, ready int64) { p.p.see(at, counter, in, ready) }

// Oldest is the age of the head.
func (p *Passage) Oldest(now time.Time) (wait time.Duration, bound string) {
	a := p.p.oldest(now)
	return a.Wait, string(a.Bound)
}

// Len is how much is remembered.
func (p *Passage) Len() int { return len(p.p.entries) }

// Eldest is that of ages such as "about 9, at most 12", in seconds.
func Eldest(text string) string {
	var of []age
	for part := range strings.SplitSeq(text, ", ") {
		if text == "" {
			break
		}
		a := age{}
		if i := strings.LastIndexByte(part, ' '); i > 0 {
			seconds := 0
			_, _ = fmt.Sscan(part[i:], &seconds)
			a.Wait, a.Bound = time.Duration(seconds)*time.Second, bound(part[:i])
		}
		of = append(of, a)
	}
	return eldest(of).String()
}

// Counted says whether a queue was counted and found empty.
func (c *Console) Counted(queue string) bool {
	c.ages.mu.Lock()
	defer c.ages.mu.Unlock()
	return !c.ages.of(queue).empty.IsZero()
}

// Routes are all patterns that are served, with the role that each needs.
func (c *Console) Routes() map[string]access.Role { return c.pages.routes().roles }

// Masked is a body as it is shown under these masks.
func Masked(body string, patterns ...string) (text string, whole bool, err error) {
	m, err := newMasks(patterns)
	if err != nil {
		return "", false, err
	}
	text, whole = m.body([]byte(body))
	return text, whole, nil
}

// FilterText is what a run says of its choice under these masks.
func FilterText(filter string, patterns ...string) string {
	m, err := newMasks(patterns)
	if err != nil {
		panic(err)
	}
	return m.filterText([]byte(filter))
}

// MaskedHeader is the value of a header as it is shown under these masks.
func MaskedHeader(name string, value any, patterns ...string) string {
	m, err := newMasks(patterns)
	if err != nil {
		panic(err)
	}
	return m.header(name, value)
}
