package testkit_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestDatabaseIsMigratedAndDropped(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	t.Run("use", func(t *testing.T) {
		db = testkit.Database(t)
		require.NoError(t, pg.CheckVersion(t.Context(), db.Pool, db.Schema))
	})
	conn, err := pgx.Connect(t.Context(), db.URL)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var left int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname = $1`, db.Schema).Scan(&left))
	require.Zero(t, left)
}

func TestBrokerIsEmptyAndDeleted(t *testing.T) {
	t.Parallel()
	vhost := testkit.Broker(t)
	t.Run("use", func(t *testing.T) {
		vhost = testkit.Broker(t)
		conn, err := amqp.Dial(vhost.URL)
		require.NoError(t, err)
		defer conn.Close()
		channel, err := conn.Channel()
		require.NoError(t, err)
		_, err = channel.QueueDeclare("q", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		require.NoError(t, err)
		var queues []struct{ Name string }
		vhost.API(t, http.MethodGet, "/api/queues/"+vhost.Vhost, nil, &queues)
		require.Len(t, queues, 1)
	})
	_, err := amqp.Dial(vhost.URL)
	require.Error(t, err, "the vhost must be gone")
}

func TestPrivateBrokerKeepsWhatWasConfirmed(t *testing.T) {
	t.Parallel()
	broker := testkit.PrivateBroker(t)
	publishDurable(t, broker.URL)
	// The orderly one first: see Kill.
	for _, blow := range []func(testing.TB){broker.Restart, broker.Kill} {
		blow(t)
		broker.Start(t)
		awaitMessage(t, broker.URL)
	}
	broker.MemoryAlarm(t, true)
	broker.MemoryAlarm(t, false)
	require.Contains(t, broker.Ctl(t, "list_queues", "name"), "kept")
	require.NotEqual(t, broker.URL, broker.NewVhost(t).URL)
}

func publishDurable(t *testing.T, u string) {
	t.Helper()
	conn, err := amqp.Dial(u)
	require.NoError(t, err)
	defer conn.Close()
	channel, err := conn.Channel()
	require.NoError(t, err)
	require.NoError(t, channel.Confirm(false))
	_, err = channel.QueueDeclare("kept", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	confirm, err := channel.PublishWithDeferredConfirm("", "kept", true, false, amqp.Publishing{DeliveryMode: amqp.Persistent})
	require.NoError(t, err)
	acked, err := confirm.WaitContext(t.Context())
	require.NoError(t, err)
	require.True(t, acked)
}

// awaitMessage waits: the queue's leader is elected only after the broker has started, and until then the broker
// may also answer that the queue is empty.
func awaitMessage(t *testing.T, u string) {
	t.Helper()
	testkit.EventuallyNil(t, 30*time.Second, "the message to come back", func() error {
		conn, err := amqp.Dial(u)
		if err != nil {
			return err
		}
		defer conn.Close()
		channel, err := conn.Channel()
		if err != nil {
			return err
		}
		q, err := channel.QueueDeclarePassive("kept", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
		if err == nil && q.Messages != 1 {
			err = fmt.Errorf("the queue holds %d messages", q.Messages)
		}
		return err
	})
}

func TestPrivatePostgresKeepsWhatWasCommitted(t *testing.T) {
	t.Parallel()
	server := testkit.PrivatePostgres(t)
	db := server.Database(t)
	_, err := db.Pool.Exec(t.Context(), `CREATE TABLE kept AS SELECT 1`)
	require.NoError(t, err)
	for _, blow := range []func(testing.TB){server.Restart, server.Kill} {
		blow(t)
		server.Start(t)
		testkit.EventuallyNil(t, 10*time.Second, "the pool to reconnect", func() error {
			_, err := db.Pool.Exec(t.Context(), `SELECT FROM kept`)
			return err
		})
	}
	server.Stop(t)
	require.Error(t, db.Pool.Ping(t.Context()))
	server.Start(t)
}

func TestProxyDelaysHangsResetsAndHeals(t *testing.T) {
	t.Parallel()
	upstream := "tcp://" + echoServer(t)
	network := testkit.Proxy(t, upstream)
	u := network.Through(t, upstream)

	require.NoError(t, echo(t, u))
	started := time.Now()
	network.Latency(t, 50*time.Millisecond)
	require.NoError(t, echo(t, u))
	require.GreaterOrEqual(t, time.Since(started), 100*time.Millisecond)

	for _, hang := range []func(testing.TB){network.HalfOpen, network.HalfOpenAnswers} {
		network.Heal(t)
		hang(t)
		require.ErrorIs(t, echo(t, u), os.ErrDeadlineExceeded, "nothing may come back, nothing may be closed")
	}
	network.Heal(t)
	network.Reset(t)
	require.ErrorIs(t, echo(t, u), syscall.ECONNRESET)
	network.Heal(t)
	network.Cut()
	require.ErrorIs(t, echo(t, u), syscall.ECONNREFUSED)
	network.Heal(t)
	require.NoError(t, echo(t, u))
}

func TestProxyBreaksAnOpenConnection(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	network := testkit.Proxy(t, db.URL)
	conn, err := pgx.Connect(t.Context(), network.Through(t, db.URL))
	require.NoError(t, err)
	require.NoError(t, conn.Ping(t.Context()))
	network.HalfOpen(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, conn.Ping(ctx), context.DeadlineExceeded)
}

// echoServer sends back what it gets until the client closes.
func echoServer(t *testing.T) (address string) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var connections sync.WaitGroup
	connections.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			connections.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	t.Cleanup(connections.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

func echo(t *testing.T, address string) error {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(address, "tcp://"))
	if err != nil {
		return err
	}
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(500*time.Millisecond)))
	if _, err := io.WriteString(conn, "hello"); err != nil {
		return err
	}
	_, err = io.ReadFull(conn, make([]byte, 5))
	return err
}

func TestLoggerMaySpeakAfterTheTest(t *testing.T) {
	t.Parallel()
	var late func()
	t.Run("over", func(t *testing.T) {
		logger := testkit.Logger(t)
		logger.Info().Msg("in time")
		late = func() { logger.Info().Msg("too late") }
	})
	require.NotPanics(t, late)
}

// judged is a test that only notes what it is told.
type judged struct {
	testing.TB
	failed string
}

func (j *judged) Helper()                   {}
func (j *judged) Cleanup(func())            {}
func (j *judged) Log(...any)                {}
func (j *judged) Errorf(f string, a ...any) { j.failed = fmt.Sprintf(f, a...) }

func TestLoggerRefusesAKeyThatComesTwice(t *testing.T) {
	t.Parallel()
	j := &judged{TB: t}
	logger := testkit.Logger(j).With().Str("role", "a").Logger()
	logger.Info().Str("other", "role").RawJSON("nested", []byte(`{"role":1}`)).Msg("role")
	require.Empty(t, j.failed)
	logger.Info().Str("role", "b").Msg("")
	require.Contains(t, j.failed, `the member "role" twice`)
}

func TestBinaryIsBuiltOnce(t *testing.T) {
	t.Parallel()
	binary := testkit.Binary(t)
	require.Equal(t, binary, testkit.Binary(t))
	out, err := exec.CommandContext(t.Context(), binary, "version").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "schema")
}
