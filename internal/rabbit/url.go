package rabbit

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/urlfile"
)

var errURL = errors.New("rabbit: the AMQP URL cannot be parsed (not shown, for it may hold a password); " +
	"expected amqp://user:password@host:5672/vhost, reserved characters in user, password and vhost percent-encoded")

// parseURL returns the URI of the first host. It never lets the library's parse errors through: they quote the URL, password included.
func parseURL(raw string) (amqp.URI, error) {
	if raw == "" {
		return amqp.URI{}, errors.New("rabbit: the AMQP URL is empty; set SUREFOOT_AMQP_URL, for example amqp://user:password@host:5672/vhost")
	}
	raw, err := resolve(raw)
	if err != nil {
		return amqp.URI{}, err
	}
	var first amqp.URI
	for i, one := range perHost(raw) {
		uri, err := amqp.ParseURI(one)
		if err != nil || uri.Host == "" {
			return amqp.URI{}, errURL
		}
		if i == 0 {
			first = uri
		}
	}
	return first, nil
}

// resolve reads the file that a URL names.
func resolve(raw string) (string, error) {
	text, err := urlfile.Resolve(raw)
	if err != nil {
		return "", fmt.Errorf("rabbit: URL of the broker: %w", err)
	}
	return text, nil
}

// Vhost is the vhost of an AMQP URL, which may name a file.
func Vhost(raw string) (string, error) {
	uri, err := parseURL(raw)
	return uri.Vhost, err
}

// perHost returns the URL once for each host that it names, as in amqp://user:password@a:5672,b:5672/vhost for the nodes of a cluster.
func perHost(raw string) []string {
	u, err := url.Parse(raw)
	if err != nil || !strings.Contains(u.Host, ",") {
		return []string{raw}
	}
	var urls []string
	for host := range strings.SplitSeq(u.Host, ",") {
		one := *u
		one.Host = host
		urls = append(urls, one.String())
	}
	return urls
}

// libraryURL is what the library gets to see. It makes the smaller of both heartbeats count: the library lets the URL win, and the URL can even
// switch heartbeats off, while a fence relies on its bound. And it hides that there is TLS, which is ours.
func libraryURL(raw string, heartbeat time.Duration) (string, error) {
	uri, err := parseURL(raw)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(raw)
	if err != nil {
		return "", errURL
	}
	if u.Scheme == "amqps" {
		u.Scheme, u.Host = "amqp", net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port))
	}
	query := u.Query()
	if query.Has("heartbeat") {
		seconds, err := strconv.Atoi(query.Get("heartbeat"))
		if err != nil {
			return "", errURL
		}
		if seconds <= 0 || time.Duration(seconds)*time.Second >= heartbeat {
			query.Del("heartbeat")
			u.RawQuery = query.Encode()
		}
	}
	return u.String(), nil
}

// address names the broker for errors and logs: host, port and vhost only.
func address(uri amqp.URI) string {
	return net.JoinHostPort(uri.Host, strconv.Itoa(uri.Port)) + "/" + strings.TrimPrefix(uri.Vhost, "/")
}
