package child_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/child"
)

func TestNothingOfTheCallersConfigurationGoesOn(t *testing.T) {
	t.Parallel()
	caller := []string{
		"PATH=/bin", "SUREFOOT_CONFIG=x", "SUREFOOT_SCHEMA=theirs", "DATABASE_URL=x", "DATABASE_URL_FILE=x", "AMQP_URL_FILE=x", "MANAGEMENT_URL=x", "OTEL_TRACES_EXPORTER=x",
	}
	services := child.Services{DatabaseURL: "d", AMQPURL: "a", Schema: "s", Exchange: "e"}
	require.Equal(t, []string{
		"PATH=/bin", "SUREFOOT_DATABASE_URL=d", "SUREFOOT_AMQP_URL=a", "SUREFOOT_SCHEMA=s", "SUREFOOT_RELAY_EXCHANGE=e", "SUREFOOT_HTTP_LISTEN=127.0.0.1:0", "MORE=1",
	}, services.Environ(caller, "MORE=1"))
	services.ManagementURL, services.CAFile = "m", "ca.pem"
	require.Subset(t, services.Environ(nil), []string{"SUREFOOT_MANAGEMENT_URL=m"})
	require.Contains(t, strings.Join(services.Environ(nil), "\n"), "SUREFOOT_AMQP_CA_FILE=/", "the process works elsewhere")
}

func TestATailIsTheEnd(t *testing.T) {
	t.Parallel()
	var tail child.Tail
	for _, part := range []string{strings.Repeat("a", 20<<10), "b\n", strings.Repeat("c", 100)} {
		n, err := tail.Write([]byte(part))
		require.NoError(t, err)
		require.Len(t, part, n)
	}
	require.Len(t, tail.String(), 16<<10)
	require.True(t, strings.HasSuffix(tail.String(), "ab\n"+strings.Repeat("c", 100)))
}

func TestMemoryOfAProcess(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("this system does not show it")
	}
	require.Greater(t, child.Resident.Of(os.Getpid()), int64(1<<20))
	require.GreaterOrEqual(t, child.Peak.Of(os.Getpid()), child.Resident.Of(os.Getpid())/2)
	require.Zero(t, child.Resident.Of(-1))
}
