package listener

import (
	"log"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

const (
	// logEvery is how often a server says the same of the same host.
	logEvery = time.Minute
	// logHosts is of how many hosts it knows that; the others are one.
	logHosts = 100
	// logText bounds a line.
	logText = 4 << 10
)

// peer is where net/http names the other side of a connection.
var peer = regexp.MustCompile(`(?:from|serving) (\S+:\d+): `)

// errorLog takes what an [http.Server] says of its connections. Whoever reaches the port can make it say something as often as they like, such as
// by handshakes that fail: it is told at once, and then once a minute for each host and kind, with the number of those that were not. Safe for
// concurrent use.
type errorLog struct {
	logger zerolog.Logger
	clock  func() time.Time

	mu   sync.Mutex
	seen map[string]*unsaid
}

// unsaid is what was not said since the last time.
type unsaid struct {
	at    time.Time
	count int
	text  string
}

// ErrorLog is for [http.Server.ErrorLog].
func ErrorLog(logger zerolog.Logger) *log.Logger {
	return log.New(newErrorLog(logger, time.Now), "", 0)
}

func newErrorLog(logger zerolog.Logger, clock func() time.Time) *errorLog {
	return &errorLog{logger: logger, clock: clock, seen: map[string]*unsaid{}}
}

// Write implements [io.Writer]; each call is one line.
func (l *errorLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := strings.TrimSpace(string(p[:min(len(p), logText)]))
	now := l.clock()
	l.forget(now)
	key := l.keyOf(text)
	s, known := l.seen[key]
	if known {
		s.count++
		s.text = text
		return len(p), nil
	}
	l.seen[key] = &unsaid{at: now}
	l.logger.Warn().Msg(text)
	return len(p), nil
}

// forget says of what was not said how much it was, once its minute is over.
func (l *errorLog) forget(now time.Time) {
	for key, s := range l.seen {
		if now.Sub(s.at) < logEvery {
			continue
		}
		delete(l.seen, key)
		if s.count > 0 {
			l.logger.Warn().Int("more", s.count).Msg(s.text)
		}
	}
}

// keyOf is the host, and what kind of thing is said of it.
func (l *errorLog) keyOf(text string) string {
	kind, host := text[:min(len(text), 40)], ""
	if at := peer.FindStringSubmatchIndex(text); at != nil {
		host, _, _ = net.SplitHostPort(text[at[2]:at[3]])
		kind = text[:at[0]]
	}
	key := host + " " + kind
	if _, known := l.seen[key]; !known && len(l.seen) >= logHosts {
		return "others"
	}
	return key
}
