package access_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/access"
)

func TestAHeaderCountsFromTheProxyAlone(t *testing.T) {
	t.Parallel()
	o := access.Options{Header: access.Header{User: "X-Forwarded-User", Groups: "X-Forwarded-Groups"}, Mapping: mapping(), Proxies: prefixes("127.0.0.0/8")}
	s := newSite(t, o)
	v := s.visitor()
	user, groups := with("X-Forwarded-User", "ann"), with("X-Forwarded-Groups", "dev, sre")
	status, body := v.who(user, groups, with("X-Forwarded-For", "203.0.113.5, 192.0.2.7, 127.0.0.9"))
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"name": "ann", "role": "operate", "addr": "192.0.2.7", "error": "<nil>"}`, body, "who is further away is only said to be there")
	for hop, addr := range map[string]string{"192.0.2.7:4711": "192.0.2.7", "[2001:db8::1]:4711, 127.0.0.9:80": "2001:db8::1", "[2001:db8::1]": "2001:db8::1", "::ffff:192.0.2.7": "192.0.2.7", "192.0.2.7, none": "127.0.0.1"} {
		_, body = v.who(user, groups, with("X-Forwarded-For", hop))
		require.Contains(t, body, `"addr":"`+addr+`"`, hop)
	}
	for name, change := range map[string][]func(*http.Request){
		"nobody":      {groups},
		"two names":   {user, with("X-Forwarded-User", "root"), groups},
		"no name":     {with("X-Forwarded-User", "a\u202eb"), groups},
		"a long name": {with("X-Forwarded-User", string(make([]byte, 0))+"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), groups},
		"no groups":   {user},
		"two lists":   {user, with("X-Forwarded-Groups", "root"), groups},
		"other group": {user, with("X-Forwarded-Groups", "devs,admin")},
	} {
		status, _ := v.who(change...)
		require.Equal(t, http.StatusForbidden, status, name)
	}
	require.Contains(t, s.log.String(), "groups have no role")

	o.Proxies = prefixes("10.0.0.0/8")
	s = newSite(t, o)
	status, body = s.visitor().who(user, groups)
	require.Equal(t, http.StatusForbidden, status, "anybody can send a header")
	require.NotContains(t, body, "operate")
	require.Contains(t, s.log.String(), "does not come from a trusted proxy")
	status, _ = s.visitor().who(user, groups, with("X-Forwarded-For", "10.0.0.1"))
	require.Equal(t, http.StatusForbidden, status, "what a header says of addresses is no address")

	o.ProxyOnly, o.Header = true, access.Header{}
	s = newSite(t, o)
	status, _ = s.visitor().who()
	require.Equal(t, http.StatusForbidden, status, "past the proxy it is not encrypted")
}

func TestAddressesToGoOnWith(t *testing.T) {
	t.Parallel()
	for _, fine := range []string{"/", "/dead?queue=a%20b&id=1", "/run?id=1"} {
		require.Equal(t, fine, access.LocalPath(fine))
	}
	for _, foreign := range []string{
		"", "https://evil.example/", "//evil.example", "/\\evil.example", "\\\\evil.example", "/%09/evil.example/..//x", "javascript:alert(1)", "/a\nSet-Cookie: x", "///evil", "/..//evil.example",
		"evil.example", "/login", "/login/oidc?next=/", "http:evil", " //evil.example", "/./login",
	} {
		require.Equal(t, "/", access.LocalPath(foreign), foreign)
	}
}

func TestRolesIncludeThoseBefore(t *testing.T) {
	t.Parallel()
	for _, r := range access.Roles() {
		for _, needs := range access.Roles() {
			may, err := access.Person{Role: r}.May(needs.String())
			require.NoError(t, err)
			require.Equal(t, r >= needs, may)
		}
	}
	_, err := access.Person{Role: access.Admin}.May("opertae")
	require.Error(t, err, "a slip in a template is found")
	may, err := access.Person{}.May("view")
	require.NoError(t, err)
	require.False(t, may)
}
