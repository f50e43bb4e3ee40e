package config

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

func defaultConsole() Console {
	return Console{
		TrustedProxies: []string{}, Mask: []string{"*password*", "*passwd*", "*secret*", "*token*", "authorization", "*cookie*", "*apikey*", "*card*", "*cvc*", "*cvv*", "*iban*"},
		Login: Login{
			OIDC:  LoginOIDC{Scopes: []string{"openid", "profile"}, NameClaim: "preferred_username", RoleClaim: "groups"},
			Roles: LoginRoles{View: []string{}, Operate: []string{}, Admin: []string{}},
			Idle:  30 * time.Minute, Absolute: 12 * time.Hour,
		},
	}
}

// HasLogin says whether people have to log in.
func (c *Console) HasLogin() bool {
	return c.Login.UsersFile != "" || c.Login.Header.User != "" || c.Login.OIDC.Issuer != ""
}

// check leaves files to whoever serves the console. What would be reachable from elsewhere by anybody, or unencrypted, is refused here.
func (c *Console) check(r *reader) {
	c.checkListen(r)
	c.checkPublic(r)
	if (c.CertFile == "") != (c.KeyFile == "") {
		r.wrong("console.cert_file", "needs console.key_file, and the reverse")
	}
	if c.ClientCAFile != "" && c.CertFile == "" {
		r.wrong("console.client_ca_file", "needs console.cert_file and console.key_file")
	}
	if _, err := c.Proxies(); err != nil {
		r.wrong("console.trusted_proxies", "%s", err)
	}
	for _, pattern := range c.Mask {
		if strings.Trim(pattern, "* ") == "" || len(pattern) > 100 {
			r.wrong("console.mask", "has %s, but a pattern is a name such as password, with * for any text", quote(pattern))
		}
	}
	c.Login.check(r, len(c.TrustedProxies) > 0)
}

func (c *Console) checkListen(r *reader) {
	if c.Listen == "" {
		return
	}
	host, port, err := net.SplitHostPort(c.Listen)
	if _, invalid := strconv.ParseUint(port, 10, 16); err != nil || invalid != nil {
		r.wrong("console.listen", "is %s, but must be host:port, such as 127.0.0.1:9465; port 0 takes any free one", quote(c.Listen))
		return
	}
	addr, err := netip.ParseAddr(host)
	switch loopback := host == "localhost" || err == nil && addr.IsLoopback(); {
	case loopback:
	case !c.HasLogin():
		r.wrong("console.listen", "is %s, where others reach it, but there is no login: set one of console.login.users_file, header and oidc, or listen on 127.0.0.1:9465 and take a tunnel", quote(c.Listen))
	case c.CertFile == "" && len(c.TrustedProxies) == 0:
		r.wrong("console.listen", "is %s, where passwords would travel in the clear: set console.cert_file and console.key_file, or console.trusted_proxies to a proxy that speaks TLS", quote(c.Listen))
	case c.PublicURL == "":
		r.wrong("console.public_url", "is missing: beyond loopback the console answers to one name only, such as https://surefoot.example.org")
	}
}

func (c *Console) checkPublic(r *reader) {
	if c.PublicURL == "" {
		return
	}
	u, err := url.Parse(c.PublicURL)
	if err != nil || !isWebAddress(c.PublicURL) || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		r.wrong("console.public_url", "must be a URL without a path and a user, such as https://surefoot.example.org") // not shown: it may hold a password
		return
	}
	if addr, err := netip.ParseAddr(u.Hostname()); u.Scheme != "https" && u.Hostname() != "localhost" && (err != nil || !addr.IsLoopback()) {
		r.wrong("console.public_url", "is %s, but must begin with https://: a login is not sent in the clear", quote(c.PublicURL))
	}
}

// Proxies are TrustedProxies as networks.
func (c *Console) Proxies() (list []netip.Prefix, err error) {
	const leastBits4, leastBits6 = 8, 32
	for _, text := range c.TrustedProxies {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			addr, wrong := netip.ParseAddr(text)
			if wrong != nil || addr.Zone() != "" {
				return nil, fmt.Errorf("has %s, but must have addresses or networks, such as 10.1.2.3 or 10.1.0.0/16", quote(text))
			}
			addr = addr.Unmap()
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		if prefix.Addr().Is4In6() { // addresses are compared as those of IPv4
			prefix = netip.PrefixFrom(prefix.Addr().Unmap(), max(prefix.Bits()-96, 0))
		}
		if least := map[bool]int{true: leastBits4, false: leastBits6}[prefix.Addr().Is4()]; prefix.Bits() < least {
			return nil, fmt.Errorf("has %s, which is nearly everybody: name the proxies", quote(text))
		}
		list = append(list, prefix.Masked())
	}
	return list, nil
}

func (l *Login) check(r *reader, proxies bool) {
	var given []string
	for key, value := range map[string]string{"users_file": l.UsersFile, "header": l.Header.User, "oidc": l.OIDC.Issuer} {
		if value != "" {
			given = append(given, key)
		}
	}
	slices.Sort(given)
	if len(given) > 1 {
		r.wrong("console.login", "has %s, but one way to log in is enough", strings.Join(given, " and "))
	}
	within(r, "console.login.idle", l.Idle, time.Minute, 24*time.Hour)
	within(r, "console.login.absolute", l.Absolute, l.Idle, 7*24*time.Hour)
	mapped := len(l.Roles.View)+len(l.Roles.Operate)+len(l.Roles.Admin) > 0
	if (l.Header.User != "" || l.OIDC.Issuer != "") && !mapped {
		r.wrong("console.login.roles", "has no groups: nobody could log in")
	}
	l.Header.check(r, proxies)
	l.OIDC.check(r)
}

func headerName() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]{0,63}$`) }

func (h *LoginHeader) check(r *reader, proxies bool) {
	if h.User != "" && !proxies {
		r.wrong("console.login.header.user", "needs console.trusted_proxies: from everybody else a header says nothing")
	}
	for key, name := range map[string]string{"user": h.User, "groups": h.Groups} {
		if name != "" && !headerName().MatchString(name) {
			r.wrong("console.login.header."+key, "is %s, but must be the name of a header, such as X-Forwarded-User", quote(name))
		}
	}
	if h.User != "" && h.Groups == "" {
		r.wrong("console.login.header.groups", "is missing: it says who has which role")
	}
}

func (o *LoginOIDC) check(r *reader) {
	if o.Issuer == "" {
		return
	}
	u, err := url.Parse(o.Issuer)
	if err != nil || !isWebAddress(o.Issuer) || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		r.wrong("console.login.oidc.issuer", "must be the provider's URL, such as https://id.example.org/realms/ops")
	} else if addr, err := netip.ParseAddr(u.Hostname()); u.Scheme != "https" && u.Hostname() != "localhost" && (err != nil || !addr.IsLoopback()) {
		r.wrong("console.login.oidc.issuer", "must begin with https://: what it says decides who may do what")
	}
	if o.ClientID == "" {
		r.wrong("console.login.oidc.client_id", "is missing: the name under which the provider knows this console")
	}
	if !slices.Contains(o.Scopes, "openid") {
		r.wrong("console.login.oidc.scopes", "must have openid")
	}
	if o.NameClaim == "" || o.RoleClaim == "" {
		r.wrong("console.login.oidc.role_claim", "and name_claim must name a claim")
	}
}
