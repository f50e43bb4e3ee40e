package config

import (
	"net/url"
	"strings"
)

// URL is the address of a service, with its password. Printing it, in whatever way, hides the password;
// Reveal gives the real text.
type URL string

// Reveal returns the URL with its password, for the client that connects.
func (u URL) Reveal() string { return string(u) }

// String shows scheme, user, host and path. What cannot be parsed is not shown at all, because nobody can
// tell which part of it is the password.
func (u URL) String() string {
	if u == "" {
		return ""
	}
	parsed, err := url.Parse(string(u))
	if err != nil || parsed.Scheme == "" || parsed.Host == "" || u.ambiguous() {
		return "(hidden)"
	}
	shown := parsed.Scheme + "://"
	if user := parsed.User.Username(); user != "" {
		shown += url.User(user).String() + "@"
	}
	return shown + parsed.Host + strings.TrimSuffix(parsed.EscapedPath(), "/")
}

// GoString hides the password from %#v too.
func (u URL) GoString() string { return `config.URL("` + u.String() + `")` }

// MarshalText hides the password from JSON, YAML and logs.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// ambiguous tells whether a reserved character in the password may have cut the URL in the wrong place:
// in amqp://user:1/2@host the password would pass for a port and a path.
func (u URL) ambiguous() bool {
	_, rest, found := strings.Cut(string(u), "://")
	if !found {
		return false
	}
	end := strings.IndexAny(rest, "/?#")
	return end >= 0 && strings.Contains(rest[end:], "@")
}
