package access_test

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/access"
)

const password = "correct horse battery"

// usersFile is a file with the lines.
func usersFile(t testing.TB, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users")
	writeUsers(t, path, lines...)
	return path
}

func writeUsers(t testing.TB, path string, lines ...string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
}

func (v *visitor) logIn(name, password string) (status int, head http.Header) {
	v.Helper()
	status, _, head = v.do(http.MethodPost, v.URL+"/login?"+url.Values{"name": {name}, "password": {password}}.Encode())
	return status, head
}

func TestPasswordsFromAFile(t *testing.T) {
	t.Parallel()
	ann, bob := access.CheapLine("ann", access.Admin, password), access.CheapLine("bob", access.View, password)
	path := usersFile(t, "# people", "", ann, bob)
	s := newSite(t, access.Options{UsersFile: path})
	v := s.visitor()
	status, _ := v.who()
	require.Equal(t, http.StatusUnauthorized, status)
	for _, wrong := range [][2]string{{"ann", "wrong"}, {"ann", ""}, {"", ""}, {"mallory", password}, {"ann", password + strings.Repeat("x", 60)}, {"Ann", password}} {
		status, _ = v.logIn(wrong[0], wrong[1])
		require.Equal(t, http.StatusUnauthorized, status, wrong)
	}
	status, _ = v.who()
	require.Equal(t, http.StatusUnauthorized, status)
	status, head := v.logIn("ann", password)
	require.Equal(t, http.StatusOK, status)
	cookie := head.Get("Set-Cookie")
	require.Contains(t, cookie, "HttpOnly")
	require.Contains(t, cookie, "SameSite=Lax")
	require.Contains(t, cookie, "Path=/")
	_, body := v.who()
	require.Contains(t, body, `"name":"ann"`)
	require.Contains(t, body, `"role":"admin"`)
	require.NotContains(t, s.log.String(), password)
	require.NotContains(t, s.log.String(), "mallory", "a password is sometimes typed where the name goes")

	long := strings.Repeat("x", 72)
	writeUsers(t, path, ann, bob, access.CheapLine("cy", access.View, long))
	s.clock.pass(2 * time.Second)
	status, _ = s.visitor().logIn("cy", long)
	require.Equal(t, http.StatusOK, status)
	status, _ = s.visitor().logIn("cy", long+"x")
	require.Equal(t, http.StatusUnauthorized, status, "bcrypt does not look further")

	// Whoever's line changes has to log in again; the file is read again by itself.
	writeUsers(t, path, access.CheapLine("ann", access.View, password), bob)
	s.clock.pass(2 * time.Second)
	status, _ = v.who()
	require.Equal(t, http.StatusUnauthorized, status, "the role has changed")
	_, _ = v.logIn("ann", password)
	_, body = v.who()
	require.Contains(t, body, `"role":"view"`)
	writeUsers(t, path, "ann:view:nonsense")
	s.clock.pass(2 * time.Second)
	status, _ = v.who()
	require.Equal(t, http.StatusOK, status, "a file that cannot be used changes nothing")
	require.Contains(t, s.log.String(), "those known before hold")
	require.NotContains(t, s.log.String(), "nonsense")
	writeUsers(t, path, bob)
	s.clock.pass(2 * time.Second)
	status, _ = v.who()
	require.Equal(t, http.StatusUnauthorized, status, "the name is gone")
}

// A name that is unknown costs what a known one does.
func TestUnknownNamesCostTheSame(t *testing.T) {
	t.Parallel()
	s := newSite(t, access.Options{UsersFile: usersFile(t, access.CheapLine("ann", access.Admin, password))})
	require.Equal(t, 4, s.gate.DecoyCost(), "as the costliest of the file")
	v := s.visitor()
	for i, name := range []string{"ann", "mallory", "", strings.Repeat("x", 500)} {
		_, _ = v.logIn(name, "wrong")
		require.EqualValues(t, i+1, s.gate.Compared(), name)
	}
	_, _ = v.logIn("ann", strings.Repeat("x", 500))
	require.EqualValues(t, 5, s.gate.Compared())
}

func TestUsersThatCannotBe(t *testing.T) {
	t.Parallel()
	ann, err := access.HashPassword("ann", access.Admin, password)
	require.NoError(t, err)
	for text, why := range map[string]string{
		"":                     "no users",
		"# nobody":             "no users",
		"ann":                  "line 1: must be NAME:ROLE:HASH",
		"ann:admin":            "line 1: must be NAME:ROLE:HASH",
		"ann:boss:" + ann[10:]: "line 1: \"boss\" is no role",
		"ann:admin:secret":     "line 1: the hash",
		ann + "\n" + ann:       "line 2: \"ann\" is there twice",
		"\n an\u202en:admin:x": "line 2: must be",
		"ann:admin:$2a$04$" + strings.Repeat("a", 53): "cost from 10",
		"ann:anyone:" + ann[10:]:                      "no role",
	} {
		_, err := access.New(access.Options{UsersFile: usersFile(t, text), ReadFile: os.ReadFile})
		require.ErrorContains(t, err, why, text)
		require.NotContains(t, err.Error(), "secret")
	}
	_, err = access.New(access.Options{UsersFile: "/nowhere/users", ReadFile: os.ReadFile})
	require.ErrorContains(t, err, "/nowhere/users")
	require.ErrorContains(t, err, "`surefoot console hash-password` makes its lines")
	for _, both := range []access.Options{
		{UsersFile: "x", Header: access.Header{User: "X-User"}, Proxies: prefixes("10.0.0.0/8")},
		{Header: access.Header{User: "X-User"}},
		{ProxyOnly: true},
	} {
		_, err := access.New(both)
		require.Error(t, err)
	}
}

func TestHashesAreMade(t *testing.T) {
	t.Parallel()
	line, err := access.HashPassword("ann", access.Operate, password)
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(line, "ann:operate:$2a$12$"), line)
	s := newSite(t, access.Options{UsersFile: usersFile(t, line)})
	status, _ := s.visitor().logIn("ann", password)
	require.Equal(t, http.StatusOK, status)
	for _, wrong := range [][2]string{{"", password}, {"a:b", password}, {"#a", password}, {" a", password}, {"ann", "short"}, {"ann", strings.Repeat("x", 73)}} {
		_, err := access.HashPassword(wrong[0], access.View, wrong[1])
		require.Error(t, err, wrong)
		require.NotContains(t, err.Error(), password)
	}
}

func TestTriesAreLimited(t *testing.T) {
	t.Parallel()
	s := newSite(t, access.Options{UsersFile: usersFile(t, access.CheapLine("ann", access.Admin, password)), Proxies: prefixes("127.0.0.1/32")})
	v := s.visitor()
	try := func(address, name, password string) (int, http.Header) {
		status, _, head := v.do(http.MethodPost, v.URL+"/login?"+url.Values{"name": {name}, "password": {password}}.Encode(), with("X-Forwarded-For", address))
		return status, head
	}
	for range 20 { // what goes well is not charged
		status, _ := try("192.0.2.1", "ann", password)
		require.Equal(t, http.StatusOK, status)
	}
	for i := range access.NameBurst { // of one name, from everywhere
		status, _ := try(fmt.Sprintf("198.51.100.%d", i), "ann", "wrong")
		require.Equal(t, http.StatusUnauthorized, status)
	}
	compared := s.gate.Compared()
	status, _ := try("203.0.113.9", "ann", password)
	require.Equal(t, http.StatusTooManyRequests, status)
	require.Equal(t, compared, s.gate.Compared(), "it costs nothing")
	s.clock.pass(31 * time.Second)
	status, _ = try("203.0.113.9", "ann", password)
	require.Equal(t, http.StatusOK, status)
	for i := range 10 { // of one address, with many names; of IPv6 a whole network
		status, _ = try(fmt.Sprintf("2001:db8:1:2::%d", i), fmt.Sprint("n", i), "wrong")
		require.Equal(t, http.StatusUnauthorized, status)
	}
	status, _ = try("2001:db8:1:2:ffff::1", "other", "wrong")
	require.Equal(t, http.StatusTooManyRequests, status)
	status, _ = try("2001:db8:1:3::1", "other", "wrong")
	require.Equal(t, http.StatusUnauthorized, status)
}

func TestLimitersAreBounded(t *testing.T) {
	t.Parallel()
	c := newClock()
	l := access.NewLimiter(2, time.Minute, c.Now)
	require.Zero(t, l.Take("attacked"))
	require.Zero(t, l.Take("attacked"))
	require.NotZero(t, l.Take("attacked"))
	for i := range access.MaxBuckets + 100 {
		require.Zero(t, l.Take(fmt.Sprint("many", i)))
	}
	require.LessOrEqual(t, l.Len(), access.MaxBuckets)
	require.NotZero(t, l.Take("attacked"), "what has the least left is kept")
	c.pass(time.Hour)
	require.Zero(t, l.Take("new"))
	require.Less(t, l.Len(), 10, "those that are full again are dropped")
}

func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	s := newSite(t, access.Options{UsersFile: usersFile(t, access.CheapLine("ann", access.Admin, password)), Idle: 11 * time.Minute, Absolute: time.Hour})
	in := func(v *visitor, change ...func(*http.Request)) bool {
		status, _ := v.who(change...)
		return status == http.StatusOK
	}
	v := s.visitor()
	_, _ = v.logIn("ann", password)
	for range 11 { // with activity until the absolute limit
		require.True(t, in(v))
		s.clock.pass(5 * time.Minute)
	}
	s.clock.pass(5 * time.Minute)
	require.False(t, in(v), "absolute")

	_, _ = v.logIn("ann", password)
	for range 4 { // a page that fetches itself is no activity
		s.clock.pass(3 * time.Minute)
		in(v, with("Sec-Fetch-Dest", "empty"))
	}
	require.False(t, in(v), "idle")

	_, _ = v.logIn("ann", password)
	_, _, _ = v.do(http.MethodPost, s.URL+"/logout")
	require.False(t, in(v), "logged out")
	require.Zero(t, s.gate.Sessions())
}

// A cookie that somebody else has put into the browser does not become a session, and the one before ends.
func TestSessionsAreNotFixed(t *testing.T) {
	t.Parallel()
	s := newSite(t, access.Options{UsersFile: usersFile(t, access.CheapLine("ann", access.Admin, password))})
	v := s.visitor()
	u, err := url.Parse(s.URL)
	require.NoError(t, err)
	v.client.Jar.SetCookies(u, []*http.Cookie{{Name: "surefoot-session", Value: "known-to-somebody-else", Path: "/"}})
	_, _ = v.logIn("ann", password)
	first := v.client.Jar.Cookies(u)[0].Value
	require.NotEqual(t, "known-to-somebody-else", first)
	require.GreaterOrEqual(t, len(first), 52)
	_, _ = v.logIn("ann", password)
	require.Equal(t, 1, s.gate.Sessions())
	other := s.visitor()
	for _, old := range []string{first, "known-to-somebody-else"} {
		other.client.Jar.SetCookies(u, []*http.Cookie{{Name: "surefoot-session", Value: old, Path: "/"}})
		status, _ := other.who()
		require.Equal(t, http.StatusUnauthorized, status)
	}
}

func TestCookiesOfHTTPS(t *testing.T) {
	t.Parallel()
	s := newSite(t, access.Options{UsersFile: usersFile(t, access.CheapLine("ann", access.Admin, password)), Secure: true})
	_, head := s.visitor().logIn("ann", password)
	require.Contains(t, head.Get("Set-Cookie"), "__Host-surefoot-session=")
	require.Contains(t, head.Get("Set-Cookie"), "; Secure")
	require.NotContains(t, head.Get("Set-Cookie"), "Domain")
}
