package rabbit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
)

// Vhosts returns the names of all that the user may see.
func (m *Management) Vhosts(ctx context.Context) ([]string, error) {
	var all []struct{ Name string }
	if err := m.get(ctx, "list vhosts", "/api/vhosts", &all); err != nil {
		return nil, err
	}
	names := make([]string, len(all))
	for i, vhost := range all {
		names[i] = vhost.Name
	}
	return names, nil
}

// CreateVhost makes the vhost and gives this user, who must be an administrator, all permissions in it. One that is
// there already is no error.
func (m *Management) CreateVhost(ctx context.Context) error {
	return m.call(ctx, http.MethodPut, fmt.Sprintf("create vhost %q", m.vhost), m.inVhost("vhosts"), nil)
}

// DeleteVhost removes the vhost with all that is in it; the user must be an administrator. One that is gone is no error.
func (m *Management) DeleteVhost(ctx context.Context) error {
	err := m.call(ctx, http.MethodDelete, fmt.Sprintf("delete vhost %q", m.vhost), m.inVhost("vhosts"), nil)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

// PrometheusURL is where the broker's own metrics are, without a path; empty when its plugin rabbitmq_prometheus is not enabled.
func (m *Management) PrometheusURL(ctx context.Context) (string, error) {
	var overview struct {
		Listeners []struct {
			Protocol string
			Port     int
		}
	}
	if err := m.get(ctx, "list listeners", "/api/overview", &overview); err != nil {
		return "", err
	}
	a, err := m.access()
	if err != nil {
		return "", err
	}
	for _, l := range overview.Listeners {
		if l.Protocol == "http/prometheus" {
			return "http://" + net.JoinHostPort(a.base.Hostname(), strconv.Itoa(l.Port)), nil
		}
	}
	return "", nil
}
