package testkit

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

// AMQP is a vhost on a RabbitMQ server.
type AMQP struct {
	// URL of the vhost, with user and password.
	URL string
	// ManagementURL is the API's address without user, password and trailing slash; both are those of URL.
	ManagementURL string
	// Vhost is its name, not escaped.
	Vhost string
}

// Broker returns an empty vhost of the test's own; it is deleted, with all that is in it, when the test ends.
func Broker(t testing.TB) AMQP {
	t.Helper()
	needsServices(t)
	u := service(t, amqpVar)
	require.NotEmpty(t, u, "no RabbitMQ: %s", howToStart)
	return newVhost(t, u, managementURL(t, u))
}

func newVhost(t testing.TB, u, management string) AMQP {
	t.Helper()
	vhost := AMQP{ManagementURL: management, Vhost: Name("t")}
	broker, err := url.Parse(u)
	require.NoError(t, err)
	user := broker.User.Username()
	broker.Path, broker.RawPath = "/"+vhost.Vhost, ""
	vhost.URL = broker.String()
	// As a sibling of t's context: clean-up runs when that one has ended.
	t.Cleanup(func() { vhost.deleteVhost(t) })
	vhost.API(t, http.MethodPut, "/api/vhosts/"+vhost.Vhost, struct{}{}, nil)
	everything := map[string]string{"configure": ".*", "write": ".*", "read": ".*"}
	vhost.API(t, http.MethodPut, "/api/permissions/"+vhost.Vhost+"/"+url.PathEscape(user), everything, nil)
	return vhost
}

// API calls the management API: path starts with "/api/". The body in is sent and the answer decoded into out,
// both as JSON and both may be nil. Any status but 2xx fails the test.
func (a AMQP) API(t testing.TB, method, path string, in, out any) {
	t.Helper()
	status, body, err := a.call(t.Context(), method, path, in)
	require.NoError(t, err, "%s %s (is RabbitMQ there? %s)", method, path, howToStart)
	require.Less(t, status, 300, "%s %s: %s", method, path, body)
	if out != nil {
		require.NoError(t, json.Unmarshal(body, out), "%s %s: %s", method, path, body)
	}
}

func (a AMQP) call(ctx context.Context, method, path string, in any) (status int, body []byte, err error) {
	var content io.Reader = http.NoBody
	if in != nil {
		encoded, err := json.Marshal(in)
		if err != nil {
			return 0, nil, err
		}
		content = bytes.NewReader(encoded)
	}
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, a.ManagementURL+path, content)
	if err != nil {
		return 0, nil, err
	}
	broker, err := url.Parse(a.URL)
	if err != nil {
		return 0, nil, err
	}
	password, _ := broker.User.Password()
	request.SetBasicAuth(broker.User.Username(), password)
	request.Header.Set("Content-Type", "application/json")
	request.Close = true // an idle connection would count as a leak
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}

func (a AMQP) deleteVhost(t testing.TB) {
	t.Helper()
	status, body, err := a.call(context.WithoutCancel(t.Context()), http.MethodDelete, "/api/vhosts/"+a.Vhost, nil)
	if err != nil || status >= 300 && status != http.StatusNotFound {
		t.Errorf("delete test vhost %s: status %d, %v: %s", a.Vhost, status, err, body)
	}
}
