package rabbit

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/tlsfiles"
)

// Failures of the management API, to be found with errors.Is.
var (
	// ErrManagementUnreachable: no usable answer; nothing is known.
	ErrManagementUnreachable = errors.New("rabbit: management API is out of reach")
	// ErrManagementDenied: 401 or 403; the user needs the tag "management" or "monitoring", or access to the vhost.
	ErrManagementDenied = errors.New("rabbit: management API denied access")
	// ErrNoVhost: 404 for all objects of a kind; there is no such vhost.
	ErrNoVhost = errors.New("rabbit: no such vhost")
	// ErrNotFound: 404; no such object.
	ErrNotFound = errors.New("rabbit: not found")
)

const (
	managementTimeout = 10 * time.Second
	managementBody    = 64 << 20
	queuePage         = 500 // queues asked for at once
)

// ManagementOptions say where the management API is.
type ManagementOptions struct {
	// AMQPURL gives the vhost, and the credentials when URL has none; may be file:///path of a file that holds it; required.
	AMQPURL string
	// URL of the API, or file:///path of a file that holds it; default port 15672 of AMQPURL's host, 15671 with https for amqps.
	URL string
	// TLS for https; default: from the parameters of AMQPURL.
	TLS *tls.Config
	// Timeout of a request; default 10 s.
	Timeout time.Duration
}

// Management makes, reads, prunes and removes one vhost through the management API, with requests that work from 3.10 to 4.3. Every request takes at most
// Timeout and 64 MiB.
// Safe for concurrent use; it holds no connection between requests, and looks at the URLs and at the files that they name for each.
type Management struct {
	opts      ManagementOptions
	vhost     string
	queuePage int
}

// NewManagement checks the options, and reads the files that hold the URLs; it does not connect.
func NewManagement(opts ManagementOptions) (*Management, error) {
	uri, err := parseURL(opts.AMQPURL)
	if err != nil {
		return nil, err
	}
	if _, err := managementURL(opts.URL, uri); err != nil {
		return nil, err
	}
	return &Management{opts: opts, vhost: uri.Vhost, queuePage: queuePage}, nil
}

// access is how the API is reached at one moment.
type access struct {
	base           *url.URL
	user, password string
	http           *http.Client
	files          tlsfiles.Files
}

func (m *Management) access() (a access, err error) {
	uri, err := parseURL(m.opts.AMQPURL)
	if err != nil {
		return a, err
	}
	if a.base, err = managementURL(m.opts.URL, uri); err != nil {
		return a, err
	}
	a.user, a.password = uri.Username, uri.Password
	if a.base.User != nil {
		a.user = a.base.User.Username()
		a.password, _ = a.base.User.Password()
		a.base.User = nil
	}
	a.files = filesOf(uri)
	if a.base.Hostname() != uri.Host {
		a.files.ServerName = ""
	}
	trust := m.opts.TLS.Clone()
	if trust == nil && a.base.Scheme == "https" {
		if trust, err = a.files.Client(); err != nil {
			return a, fmt.Errorf("rabbit: TLS: %w", err)
		}
	}
	a.http = &http.Client{
		Timeout:       cmp.Or(m.opts.Timeout, managementTimeout),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it would carry the password elsewhere
		Transport:     &http.Transport{TLSClientConfig: trust, DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment},
	}
	return a, nil
}

// do sends a request. The answer's body is the caller's to close.
func (a access) do(op string, request *http.Request) (*http.Response, error) {
	response, err := a.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w at %s: %s: %w", ErrManagementUnreachable, a.base.Host, op, a.files.Explain(err, a.base.Host))
	}
	return response, nil
}

// UsualManagementURL is where the management API of a broker is unless something else is said: its host at the plugin's port, encrypted when AMQP
// is. It is without credentials.
func UsualManagementURL(scheme, host string) *url.URL {
	if scheme == "amqps" {
		return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, "15671")}
	}
	return &url.URL{Scheme: "http", Host: net.JoinHostPort(host, "15672")}
}

func managementURL(raw string, uri amqp.URI) (*url.URL, error) {
	if raw == "" {
		return UsualManagementURL(uri.Scheme, uri.Host), nil
	}
	raw, err := resolve(raw)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(raw)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("rabbit: the management URL cannot be used (not shown, for it may hold a password); expected http://user:password@host:15672")
	}
	return u, nil
}

// Vhost is the vhost it reads.
func (m *Management) Vhost() string { return m.vhost }

func (m *Management) get(ctx context.Context, op, path string, into any) error {
	return m.call(ctx, http.MethodGet, op, path, into)
}

// list gets all objects of a kind in the vhost: 404 is no empty list, but says that there is no vhost.
func (m *Management) list(ctx context.Context, kind, path string, into any) error {
	err := m.get(ctx, "list "+kind, path, into)
	if errors.Is(err, ErrNotFound) {
		return fmt.Errorf("%w: %q: %w", ErrNoVhost, m.vhost, err)
	}
	return err
}

// call decodes the answer into into, unless that is nil. It keeps numbers whole.
func (m *Management) call(ctx context.Context, method, op, path string, into any) error {
	a, err := m.access()
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrManagementUnreachable, op, err)
	}
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(a.base.String(), "/")+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("%w: %s", ErrManagementUnreachable, op)
	}
	request.SetBasicAuth(a.user, a.password)
	request.Header.Set("Accept", "application/json")
	response, err := a.do(op, request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if err := m.refusal(a, op, response.StatusCode); err != nil || into == nil {
		return err
	}
	decoder := json.NewDecoder(io.LimitReader(response.Body, managementBody))
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%w at %s: %s: the answer is not the management API's (more than %d MiB, or not JSON): %w",
			ErrManagementUnreachable, a.base.Host, op, managementBody>>20, err)
	}
	return nil
}

func (m *Management) refusal(a access, op string, status int) error {
	switch status {
	case http.StatusOK, http.StatusCreated, http.StatusNoContent:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w at %s: %s: status %d for user %q; it needs the tag \"management\" or \"monitoring\" and access to vhost %q",
			ErrManagementDenied, a.base.Host, op, status, a.user, m.vhost)
	case http.StatusNotFound:
		return fmt.Errorf("%w at %s: %s", ErrNotFound, a.base.Host, op)
	default:
		return fmt.Errorf("%w at %s: %s: status %s", ErrManagementUnreachable, a.base.Host, op, strconv.Itoa(status))
	}
}

// inVhost makes a path of the vhost's objects.
func (m *Management) inVhost(kind string, name ...string) string {
	path := []string{"/api", kind, url.PathEscape(m.vhost)}
	for _, n := range name {
		path = append(path, url.PathEscape(n))
	}
	return strings.Join(path, "/")
}
