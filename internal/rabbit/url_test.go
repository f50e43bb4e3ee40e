package rabbit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
)

func TestNoPasswordInAnyError(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	for _, u := range []string{
		"", "amqp://shop:s3cret@host:s3cret/", "amqp://shop:s3cret@ho st/", "amqp://shop:s3%zzcret@host/", "http://shop:s3cret@host/",
		"amqp://shop:s3/cret@host/", "amqp://shop:s3cret@host/?heartbeat=s3cret", "amqp://shop:s3cret@host/?channel_max=s3cret",
	} {
		_, err := rabbit.Dial(t.Context(), rabbit.Options{URL: u, Role: "test"})
		require.Error(t, err, u)
		require.NotContains(t, err.Error(), secret, u)
		_, err = rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: u})
		require.Error(t, err, u)
		require.NotContains(t, err.Error(), secret, u)
	}
	_, err := rabbit.Dial(t.Context(), rabbit.Options{URL: "amqp://shop:s3cret@127.0.0.1:1/v", Role: "test"})
	require.ErrorContains(t, err, `connect to 127.0.0.1:1/v as "shop"`)
	require.NotContains(t, err.Error(), secret)
	_, err = rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: "amqp://a:b@c/", URL: "ftp://shop:s3cret@host"})
	require.Error(t, err)
	require.NotContains(t, err.Error(), secret)
}

func TestOptionsNameEveryFault(t *testing.T) {
	t.Parallel()
	err := rabbit.Options{Heartbeat: time.Millisecond, DialTimeout: -1, WriteTimeout: -1, RPCTimeout: -1}.Validate()
	for _, part := range []string{"URL is empty", "Role is empty", "Heartbeat is 1ms", "DialTimeout", "WriteTimeout", "RPCTimeout"} {
		require.ErrorContains(t, err, part)
	}
	require.NoError(t, rabbit.Options{URL: "amqp://localhost", Role: "test"}.Validate())
}

func TestTheSmallerHeartbeatCounts(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"amqp://h/v":                           "amqp://h/v",
		"amqp://h/v?heartbeat=2":               "amqp://h/v?heartbeat=2",
		"amqp://h/v?heartbeat=60":              "amqp://h/v",
		"amqp://h/v?heartbeat=0&channel_max=5": "amqp://h/v?channel_max=5",
		"amqp://u:p%40@h/%2Fv?heartbeat=4":     "amqp://u:p%40@h/%2Fv",
		"amqps://u:p%40@h/%2Fv":                "amqp://u:p%40@h:5671/%2Fv",
		"amqps://[::1]:99/?heartbeat=2":        "amqp://[::1]:99/?heartbeat=2",
	} {
		got, err := rabbit.LibraryURL(in, 4*time.Second)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
