package rabbit_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestAVhostIsMadeListedAndRemoved(t *testing.T) {
	t.Parallel()
	broker, name := testkit.Broker(t), testkit.Name("made/by hand")
	u, err := url.Parse(broker.URL)
	require.NoError(t, err)
	u.Path, u.RawPath = "/"+name, "/"+url.PathEscape(name)
	m, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: u.String(), URL: broker.ManagementURL, Timeout: time.Minute})
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, m.CreateVhost(t.Context()))
	}
	all, err := m.Vhosts(t.Context())
	require.NoError(t, err)
	require.Contains(t, all, name)
	for range 2 {
		require.NoError(t, m.DeleteVhost(t.Context()))
	}
	all, err = m.Vhosts(t.Context())
	require.NoError(t, err)
	require.NotContains(t, all, name)
	require.Contains(t, all, broker.Vhost)
}
