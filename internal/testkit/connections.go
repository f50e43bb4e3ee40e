package testkit

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Connection is one that the management API lists.
type Connection struct {
	Name string `json:"name"` // the broker's own
	User string `json:"user"`
	// Client is what the client says of itself.
	Client struct {
		Name    string `json:"connection_name"`
		Product string `json:"product"`
	} `json:"client_properties"`
}

// CloseConnections has the broker close those connections of the vhost that are wanted, as an operator would. It waits until
// there is one to close, for the API lists a connection some seconds after it was opened, and for some seconds after its end.
func (a AMQP) CloseConnections(t testing.TB, wanted func(Connection) bool) {
	t.Helper()
	Eventually(t, time.Minute, "a connection to close to be listed", func() bool {
		var listed []Connection
		a.API(t, http.MethodGet, "/api/vhosts/"+url.PathEscape(a.Vhost)+"/connections", nil, &listed)
		closed := 0
		for _, c := range listed {
			if wanted(c) && a.closeConnection(t, c.Name) {
				closed++
			}
		}
		return closed > 0
	})
}

// closeConnection is false for one that is gone already.
func (a AMQP) closeConnection(t testing.TB, name string) bool {
	t.Helper()
	status, body, err := a.call(t.Context(), http.MethodDelete, "/api/connections/"+url.PathEscape(name), nil)
	require.NoError(t, err)
	require.Contains(t, []int{http.StatusNoContent, http.StatusNotFound}, status, "close connection %s: %s", name, body)
	return status == http.StatusNoContent
}
