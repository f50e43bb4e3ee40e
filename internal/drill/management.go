package drill

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

// management makes and removes vhosts. It holds no connection between requests.
type management struct {
	base *url.URL
	http *http.Client
	user *url.Userinfo
}

const (
	managementTimeout = 20 * time.Second
	managementBody    = 16 << 20
)

var errManagementURL = errors.New("the management URL cannot be parsed (not shown, for it may hold a password)")

func newManagement(o Options) (*management, error) {
	broker, err := amqp.ParseURI(o.AMQPURL)
	if err != nil {
		return nil, errors.New("the AMQP URL cannot be parsed (not shown, for it may hold a password)")
	}
	text := o.ManagementURL
	switch {
	case text != "":
	case broker.Scheme == "amqps":
		text = fmt.Sprintf("https://%s:15671", broker.Host)
	default:
		text = fmt.Sprintf("http://%s:15672", broker.Host)
	}
	base, err := url.Parse(strings.TrimSuffix(text, "/"))
	if err != nil || base.Host == "" {
		return nil, errManagementURL
	}
	m := &management{base: base, user: base.User}
	if m.user == nil {
		m.user = url.UserPassword(broker.Username, broker.Password)
	}
	base.User = nil
	var trusted *tls.Config
	if o.TLS != nil {
		trusted = o.TLS.Clone()
	}
	m.http = &http.Client{
		Timeout: managementTimeout, Transport: &http.Transport{TLSClientConfig: trusted, DisableKeepAlives: true, Proxy: http.ProxyFromEnvironment},
	}
	return m, nil
}

// vhosts lists all that the user may see.
func (m *management) vhosts(ctx context.Context) ([]string, error) {
	var all []struct{ Name string }
	if err := m.call(ctx, http.MethodGet, "/api/vhosts", &all); err != nil {
		return nil, fmt.Errorf("list vhosts: %w", err)
	}
	names := make([]string, len(all))
	for i, vhost := range all {
		names[i] = vhost.Name
	}
	return names, nil
}

// createVhost gives the user, who must be an administrator, all permissions in it, too.
func (m *management) createVhost(ctx context.Context, name string) error {
	if err := m.call(ctx, http.MethodPut, "/api/vhosts/"+url.PathEscape(name), nil); err != nil {
		return fmt.Errorf("a drill needs a vhost of its own: create vhost %q: %w", name, err)
	}
	return nil
}

// deleteVhost removes it with all that is in it; one that is gone is no error.
func (m *management) deleteVhost(ctx context.Context, name string) error {
	err := m.call(ctx, http.MethodDelete, "/api/vhosts/"+url.PathEscape(name), nil)
	if err != nil && !errors.Is(err, rabbit.ErrNotFound) {
		return fmt.Errorf("delete vhost %q: %w", name, err)
	}
	return nil
}

func (m *management) call(ctx context.Context, method, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, m.base.String()+path, http.NoBody)
	if err != nil {
		return errManagementURL
	}
	password, _ := m.user.Password()
	request.SetBasicAuth(m.user.Username(), password)
	response, err := m.http.Do(request)
	if err != nil {
		return fmt.Errorf("%w at %s: %w", rabbit.ErrManagementUnreachable, m.base.Host, err)
	}
	defer func() { _ = response.Body.Close() }()
	switch {
	case response.StatusCode == http.StatusUnauthorized, response.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%w at %s to user %q, who must be an administrator", rabbit.ErrManagementDenied, m.base.Host, m.user.Username())
	case response.StatusCode == http.StatusNotFound:
		return rabbit.ErrNotFound
	case response.StatusCode >= http.StatusMultipleChoices:
		return fmt.Errorf("%w at %s: status %d", rabbit.ErrManagementUnreachable, m.base.Host, response.StatusCode)
	case into == nil:
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, managementBody)).Decode(into); err != nil {
		return fmt.Errorf("%w at %s: its answer is not JSON: %w", rabbit.ErrManagementUnreachable, m.base.Host, err)
	}
	return nil
}
