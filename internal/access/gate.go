package access

import (
	"cmp"
	"crypto/cipher"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/rs/zerolog"
	"golang.org/x/time/rate"

	"github.com/surefoot-mq/surefoot/internal/audit"
)

// Header is a login by a proxy in front.
type Header struct {
	// User is the header with the name. Empty: no login by header.
	User string
	// Groups is the header with the groups, separated by commas.
	Groups string
}

// Mapping says which groups, or values of a claim, make which role. The highest counts.
type Mapping struct{ View, Operate, Admin []string }

func (m Mapping) of(groups []string) Role {
	for _, of := range []struct {
		role  Role
		names []string
	}{{Admin, m.Admin}, {Operate, m.Operate}, {View, m.View}} {
		if slices.ContainsFunc(groups, func(g string) bool { return slices.Contains(of.names, g) }) {
			return of.role
		}
	}
	return 0
}

// Options of a gate. Without UsersFile, Header and OIDC there is no login.
type Options struct {
	// UsersFile has names, roles and hashes. Default: none.
	UsersFile string
	// ReadFile reads it, like os.ReadFile. Required with UsersFile.
	ReadFile func(path string) ([]byte, error)
	// Header is a login by a proxy. Default: none.
	Header Header
	// OIDC is a login by a provider. Default: none.
	OIDC OIDC
	// Mapping of groups or claims to roles.
	Mapping Mapping
	// Proxies are the addresses from which headers of proxies are believed. Default: none.
	Proxies []netip.Prefix
	// ProxyOnly refuses whoever does not come through one of Proxies: what listens there is not encrypted.
	ProxyOnly bool
	// PublicURL is how browsers name the console, without a path. Default: as they do.
	PublicURL string
	// Secure says that browsers reach it by https.
	Secure bool
	// Idle is how long a session lasts without activity; Absolute how long at most. Default: 30 min and 12 h.
	Idle, Absolute time.Duration
	// Nobody is the name of whoever acts when there is no login. Required then.
	Nobody string
	// Logger of logins. Default: none.
	Logger zerolog.Logger
	// Clock tells the time. Default: time.Now.
	Clock func() time.Time

	// leastCost of hashes, for tests, which have no time. Default: minCost.
	leastCost int
}

// Gate tells who comes. Make it with New; safe for concurrent use.
type Gate struct {
	opts      Options
	users     *users
	sessions  sessions
	addresses *limiter
	names     *limiter
	provider  provider
	seal      cipher.AEAD
	warnings  rate.Sometimes
}

// Methods of login.
const (
	ByNobody   = ""
	ByPassword = "password"
	ByHeader   = "header"
	ByOIDC     = "oidc"
)

// Limits of tries: so many at once, and then one each time.
const (
	addressBurst, addressEvery = 10, 10 * time.Second
	nameBurst, nameEvery       = 10, 30 * time.Second
)

// New checks the options, and reads the file of users.
func New(o Options) (*Gate, error) {
	o.Idle, o.Absolute = cmp.Or(o.Idle, 30*time.Minute), cmp.Or(o.Absolute, 12*time.Hour)
	if o.Clock == nil {
		o.Clock = time.Now
	}
	g := &Gate{
		opts: o, addresses: newLimiter(addressBurst, addressEvery, o.Clock), names: newLimiter(nameBurst, nameEvery, o.Clock),
		seal: newSeal(), warnings: rate.Sometimes{First: 10, Interval: time.Second},
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.UsersFile != "" {
		g.users = &users{path: o.UsersFile, read: o.ReadFile, logger: o.Logger, clock: o.Clock, least: cmp.Or(o.leastCost, minCost)}
		if err := g.users.load(); err != nil {
			return nil, err
		}
	}
	return g, nil
}

func (o Options) check() error {
	count := 0
	for _, given := range []bool{o.UsersFile != "", o.Header.User != "", o.OIDC.Issuer != ""} {
		if given {
			count++
		}
	}
	switch {
	case count > 1:
		return errors.New("one way to log in is enough: users_file, header or oidc")
	case o.Header.User != "" && len(o.Proxies) == 0:
		return errors.New("a login by header needs trusted_proxies, from which alone it is believed")
	case o.ProxyOnly && len(o.Proxies) == 0:
		return errors.New("without TLS it needs trusted_proxies, from which alone it is reached")
	}
	return nil
}

// Method is how people log in.
func (g *Gate) Method() string {
	switch {
	case g.opts.UsersFile != "":
		return ByPassword
	case g.opts.Header.User != "":
		return ByHeader
	case g.opts.OIDC.Issuer != "":
		return ByOIDC
	}
	return ByNobody
}

// Error says why somebody is not let in; its text is for the person.
type Error struct {
	Status int
	Text   string
	// Wait is when to try again. Zero: it does not help.
	Wait time.Duration
}

// Error is the text.
func (e *Error) Error() string { return e.Text }

// ErrNobody says that a request has no session: its person has to log in.
var ErrNobody = &Error{Status: http.StatusUnauthorized, Text: "log in first"}

func refused(text string) *Error { return &Error{Status: http.StatusForbidden, Text: text} }

// warn logs what somebody from outside can cause, a bounded number of times.
func (g *Gate) warn(r *http.Request, text string) {
	g.warnings.Do(func() { g.opts.Logger.Warn().Str("addr", g.address(r)).Msg(text) })
}

// Reaches says whether a request may reach this server at all.
func (g *Gate) Reaches(r *http.Request) error {
	if g.opts.ProxyOnly && !g.trusted(directAddr(r)) {
		g.warn(r, "console refused whoever does not come through a trusted proxy")
		return refused("this console is reached through its proxy only")
	}
	return nil
}

// Who is the person that a request is from.
func (g *Gate) Who(r *http.Request) (Person, error) {
	// A page that updates itself is no activity of a person.
	return g.who(r, r.Header.Get("Sec-Fetch-Dest") != "empty")
}

// Still is who a request is from that goes on for long, which is no activity either.
func (g *Gate) Still(r *http.Request) (Person, error) { return g.who(r, false) }

// Key stands for whoever a request is from, to count by: the name of the person, or the address where there is none or everybody has the same.
// That of IPv6 is its network.
func (g *Gate) Key(r *http.Request) string {
	if p, err := g.Still(r); err == nil && g.Method() != ByNobody {
		return "person " + p.Name
	}
	return "address " + g.limitKey(r)
}

func (g *Gate) who(r *http.Request, active bool) (Person, error) {
	p := Person{Address: g.address(r)}
	switch g.Method() {
	case ByNobody:
		p.Name, p.Role = g.opts.Nobody, Admin
		return p, nil
	case ByHeader:
		return g.byHeader(r, p)
	}
	s, known := g.session(r, active)
	if !known {
		return p, ErrNobody
	}
	p.Name, p.Role, p.Session = s.name, s.role, true
	return p, nil
}

// maxNameBytes of a person.
const maxNameBytes = 128

// fitName says whether a name can stand in the audit, and be told from others by whoever reads it.
func fitName(name string) bool {
	return name != "" && len(name) <= maxNameBytes && audit.IsPlain(name) && name == strings.TrimSpace(name)
}

// byHeader believes a proxy, and nobody else.
func (g *Gate) byHeader(r *http.Request, p Person) (Person, error) {
	names := r.Header.Values(g.opts.Header.User)
	switch {
	case !g.trusted(directAddr(r)):
		if len(names) > 0 {
			g.warn(r, "console refused a login header that does not come from a trusted proxy")
		}
		return p, refused("this console is reached through its proxy only, which knows who you are")
	case len(names) == 0:
		return p, refused("the proxy in front does not say who you are")
	case len(names) > 1 || !fitName(names[0]):
		g.warn(r, "console refused a login header that is no name, or more than one")
		return p, refused("the proxy in front says no name that could be kept in the audit")
	}
	var groups []string
	if g.opts.Header.Groups != "" {
		lines := r.Header.Values(g.opts.Header.Groups)
		if len(lines) > 1 { // one of them may be the browser's own
			g.warn(r, "console refused a login with more than one header of groups")
			return p, refused("the proxy in front says your groups more than once")
		}
		groups = strings.Split(strings.Join(lines, ""), ",")
		for i := range groups {
			groups[i] = strings.TrimSpace(groups[i])
		}
	}
	p.Name, p.Role = names[0], g.opts.Mapping.of(groups)
	if p.Role == 0 {
		g.warn(r, "console refused somebody whose groups have no role")
		return p, refused("none of your groups has a role in this console")
	}
	return p, nil
}

// Trusted says whether an address is one of the proxies in front.
func (g *Gate) Trusted(addr netip.Addr) bool { return g.trusted(addr) }

// trusted says whether an address is one of the proxies.
func (g *Gate) trusted(addr netip.Addr) bool {
	return slices.ContainsFunc(g.opts.Proxies, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// directAddr is where a connection comes from.
func directAddr(r *http.Request) netip.Addr {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	addr, _ := netip.ParseAddr(host)
	return addr.Unmap().WithZone("")
}

// addr is where a request comes from: behind trusted proxies the last address that is not one of them, for what stands before it
// in the header anybody can write.
func (g *Gate) addr(r *http.Request) netip.Addr {
	addr := directAddr(r)
	if !g.trusted(addr) {
		return addr
	}
	var hops []string
	for _, line := range r.Header.Values("X-Forwarded-For") {
		hops = append(hops, strings.Split(line, ",")...)
	}
	for _, hop := range slices.Backward(hops) {
		next, err := hopAddr(strings.TrimSpace(hop))
		if err != nil {
			return addr
		}
		if addr = next.Unmap().WithZone(""); !g.trusted(addr) {
			return addr
		}
	}
	return addr
}

// hopAddr reads an address as proxies write it: some add its port.
func hopAddr(text string) (netip.Addr, error) {
	if withPort, err := netip.ParseAddrPort(text); err == nil {
		return withPort.Addr(), nil
	}
	return netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
}

func (g *Gate) address(r *http.Request) string {
	if addr := g.addr(r); addr.IsValid() {
		return addr.String()
	}
	return "unknown"
}

// LocalPath is an address to go on with, if it is one of this server, and else the overview.
func LocalPath(next string) string {
	const home = "/"
	if len(next) > 2000 || !strings.HasPrefix(next, "/") || strings.ContainsRune(next, '\\') || strings.ContainsFunc(next, unicode.IsControl) {
		return home
	}
	u, err := url.Parse(next)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || strings.HasPrefix(u.Path, "//") || path.Clean(u.Path) != u.Path ||
		u.Path == "/login" || strings.HasPrefix(u.Path, "/login/") {
		return home
	}
	return u.RequestURI()
}

// LogIn compares a password, and begins a session.
func (g *Gate) LogIn(w http.ResponseWriter, r *http.Request, name, password string) error {
	if g.users == nil {
		return refused("there is no login by password")
	}
	byAddress, byName := g.limitKey(r), name
	if len(byName) > maxNameBytes {
		byName = ""
	}
	if wait := max(g.addresses.take(byAddress), g.names.take(byName)); wait > 0 {
		g.warn(r, "console refused a login: too many tries")
		return &Error{http.StatusTooManyRequests, "too many tries; wait for " + fmt.Sprint(wait.Round(time.Second)), wait}
	}
	u, fits, err := g.users.check(r.Context(), name, password)
	if err != nil {
		return &Error{Status: http.StatusServiceUnavailable, Text: "too many logins at a time; try again", Wait: time.Second}
	}
	if !fits {
		g.warn(r, "console login failed") // without the name: a password is sometimes typed there
		return &Error{Status: http.StatusUnauthorized, Text: "there is nobody of this name with this password"}
	}
	g.addresses.give(byAddress)
	g.names.give(byName)
	g.begin(w, r, session{name: u.name, role: u.role, proof: u.proof})
	return nil
}

// limitKey is an address, of IPv6 its network: there everybody has many.
func (g *Gate) limitKey(r *http.Request) string {
	addr := g.addr(r)
	if addr.Is6() {
		if network, err := addr.Prefix(64); err == nil {
			return network.String()
		}
	}
	return addr.String()
}
