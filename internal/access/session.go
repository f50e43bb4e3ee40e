package access

import (
	"crypto/rand"
	"crypto/sha256"
	"net/http"
	"sync"
	"time"
)

// maxSessions of one console; another one pushes out that which was idle for longest.
const maxSessions = 1000

// session is one login.
type session struct {
	name  string
	role  Role
	proof [sha256.Size]byte // of the line in the file of users; zero: it has none
	began time.Time
	seen  time.Time
}

// sessions are by the hash of their token. The zero value is ready; safe for concurrent use.
type sessions struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]*session
}

// cookieName has the prefix by which browsers take a cookie from this very host, over https, alone.
func (g *Gate) cookieName(of string) string {
	if g.opts.Secure {
		return "__Host-surefoot-" + of
	}
	return "surefoot-" + of
}

// Cookie makes one, with the attributes of that of the session. Without a value it ends that of the browser.
func (g *Gate) Cookie(of, value string, lasts time.Duration) *http.Cookie {
	c := &http.Cookie{
		Name: g.cookieName(of), Value: value, Path: "/", HttpOnly: true, Secure: g.opts.Secure,
		SameSite: http.SameSiteLaxMode, // strict would not be sent when the provider leads back
		MaxAge:   int(lasts.Seconds()),
	}
	if value == "" {
		c.MaxAge = -1
	}
	return c
}

// begin makes a session with a token that nobody had before; that of the browser until now ends.
func (g *Gate) begin(w http.ResponseWriter, r *http.Request, s session) {
	g.end(r)
	token := rand.Text() + rand.Text() // 260 bits
	s.began = g.opts.Clock()
	s.seen = s.began
	g.sessions.mu.Lock()
	defer g.sessions.mu.Unlock()
	if g.sessions.all == nil {
		g.sessions.all = map[[sha256.Size]byte]*session{}
	}
	if len(g.sessions.all) >= maxSessions {
		g.dropOldest()
	}
	g.sessions.all[sha256.Sum256([]byte(token))] = &s
	http.SetCookie(w, g.Cookie("session", token, g.opts.Absolute))
	g.opts.Logger.Info().Str("who", s.name).Stringer("granted", s.role).Str("addr", g.address(r)).Msg("console login")
}

// dropOldest drops what has ended, or else that which was idle for longest. The lock is held.
func (g *Gate) dropOldest() {
	var oldest [sha256.Size]byte
	var at time.Time
	for key, s := range g.sessions.all {
		if g.ended(s) {
			delete(g.sessions.all, key)
		} else if at.IsZero() || s.seen.Before(at) {
			oldest, at = key, s.seen
		}
	}
	if len(g.sessions.all) >= maxSessions {
		delete(g.sessions.all, oldest)
	}
}

func (g *Gate) ended(s *session) bool {
	now := g.opts.Clock()
	return now.Sub(s.seen) >= g.opts.Idle || now.Sub(s.began) >= g.opts.Absolute
}

func (g *Gate) token(r *http.Request) (key [sha256.Size]byte, given bool) {
	c, err := r.Cookie(g.cookieName("session"))
	if err != nil || c.Value == "" {
		return key, false
	}
	return sha256.Sum256([]byte(c.Value)), true
}

// session is that of a request; active says that it shows a person to be there.
func (g *Gate) session(r *http.Request, active bool) (session, bool) {
	key, given := g.token(r)
	if !given {
		return session{}, false
	}
	s, known := g.look(key, active)
	if known && g.users != nil && !g.users.holds(s.name, s.proof) {
		g.end(r)
		return session{}, false
	}
	return s, known
}

func (g *Gate) look(key [sha256.Size]byte, active bool) (session, bool) {
	g.sessions.mu.Lock()
	defer g.sessions.mu.Unlock()
	s := g.sessions.all[key]
	switch {
	case s == nil:
		return session{}, false
	case g.ended(s):
		delete(g.sessions.all, key)
		return session{}, false
	case active:
		s.seen = g.opts.Clock()
	}
	return *s, true
}

// end forgets the session of a request.
func (g *Gate) end(r *http.Request) {
	key, given := g.token(r)
	if !given {
		return
	}
	g.sessions.mu.Lock()
	defer g.sessions.mu.Unlock()
	delete(g.sessions.all, key)
}

// LogOut ends the session of a request.
func (g *Gate) LogOut(w http.ResponseWriter, r *http.Request) {
	g.end(r)
	http.SetCookie(w, g.Cookie("session", "", 0))
}

// Bond is what ties other cookies to the session of a request; empty without one.
func (g *Gate) Bond(r *http.Request) string {
	key, given := g.token(r)
	if !given {
		return ""
	}
	return string(key[:])
}
