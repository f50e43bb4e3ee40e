package rabbit

import (
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
	// AMQPURL gives the vhost, and the credentials when URL has none; required.
	AMQPURL string
	// URL of the API; default port 15672 of AMQPURL's host, 15671 with https for amqps.
	URL string
	// TLS for https; default the system's authorities.
	TLS *tls.Config
}

// Management reads, and prunes, one vhost through the management API, with requests that work from 3.10 to 4.3. Every request takes at most 10 s and 64 MiB.
// Safe for concurrent use; it holds no connection between requests.
type Management struct {
	base           *url.URL
	user, password string
	vhost          string
	http           *http.Client
	queuePage      int
}

// NewManagement checks the options; it does no I/O.
func NewManagement(opts ManagementOptions) (*Management, error) {
	uri, err := parseURL(opts.AMQPURL)
	if err != nil {
		return nil, err
	}
	base, err := managementURL(opts.URL, opts.AMQPURL)
	if err != nil {
		return nil, err
	}
	m := &Management{base: base, user: uri.Username, password: uri.Password, vhost: uri.Vhost, queuePage: queuePage}
	if base.User != nil {
		m.user = base.User.Username()
		m.password, _ = base.User.Password()
		base.User = nil
	}
	m.http = &http.Client{
		Timeout:       managementTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // it would carry the password elsewhere
		Transport:     &http.Transport{TLSClientConfig: opts.TLS.Clone(), DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment},
	}
	return m, nil
}

func managementURL(raw, amqpURL string) (*url.URL, error) {
	if raw == "" {
		uri, err := parseURL(amqpURL)
		if err != nil {
			return nil, err
		}
		scheme, port := "http", "15672"
		if uri.Scheme == "amqps" {
			scheme, port = "https", "15671"
		}
		return &url.URL{Scheme: scheme, Host: net.JoinHostPort(uri.Host, port)}, nil
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
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(m.base.String(), "/")+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("%w: %s", ErrManagementUnreachable, op)
	}
	request.SetBasicAuth(m.user, m.password)
	request.Header.Set("Accept", "application/json")
	response, err := m.http.Do(request)
	if err != nil {
		return fmt.Errorf("%w at %s: %s: %w", ErrManagementUnreachable, m.base.Host, op, err)
	}
	defer response.Body.Close()
	if err := m.refusal(op, response.StatusCode); err != nil || into == nil {
		return err
	}
	decoder := json.NewDecoder(io.LimitReader(response.Body, managementBody))
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%w at %s: %s: the answer is not the management API's (more than %d MiB, or not JSON): %w",
			ErrManagementUnreachable, m.base.Host, op, managementBody>>20, err)
	}
	return nil
}

func (m *Management) refusal(op string, status int) error {
	switch status {
	case http.StatusOK, http.StatusCreated, http.StatusNoContent:
		return nil
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Errorf("%w at %s: %s: status %d for user %q; it needs the tag \"management\" or \"monitoring\" and access to vhost %q",
			ErrManagementDenied, m.base.Host, op, status, m.user, m.vhost)
	case http.StatusNotFound:
		return fmt.Errorf("%w at %s: %s", ErrNotFound, m.base.Host, op)
	default:
		return fmt.Errorf("%w at %s: %s: status %s", ErrManagementUnreachable, m.base.Host, op, strconv.Itoa(status))
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
