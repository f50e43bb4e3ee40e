package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/jackc/pgx/v5/pgconn"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/watchdog"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for name, tt := range map[string]struct {
		ctx  context.Context
		err  error
		want int
	}{
		"nothing":                    {t.Context(), nil, 0},
		"anything":                   {t.Context(), errors.New("x"), 1},
		"usage":                      {t.Context(), usageErrorf("", "x"), 2},
		"role not built":             {t.Context(), &app.SetupError{Role: "x", Err: refused}, 2},
		"rule and table":             {t.Context(), errors.Join(&watchdog.FaultError{Rule: "x"}), 2},
		"rule and rights":            {t.Context(), fmt.Errorf("check: %w", &watchdog.FaultError{Rule: "x", Denied: true}), 4},
		"faults":                     {t.Context(), fmt.Errorf("load: %w", config.FaultsError{{Problem: "x"}}), 2},
		"nothing to run":             {t.Context(), app.ErrNothingToRun, 2},
		"partly":                     {t.Context(), partly(errors.New("x")), 3},
		"partly, because refused":    {t.Context(), partly(refused), 3},
		"denied":                     {t.Context(), denied(errors.New("x"), ""), 4},
		"password":                   {t.Context(), &pgconn.PgError{Code: "28P01"}, 4},
		"privilege":                  {t.Context(), fmt.Errorf("read: %w", &pgconn.PgError{Code: "42501"}), 4},
		"broker refuses":             {t.Context(), fmt.Errorf("dial: %w", amqp.ErrCredentials), 4},
		"no such database":           {t.Context(), fmt.Errorf("connect: %w", &pgconn.PgError{Code: "3D000"}), 5},
		"no such vhost":              {t.Context(), &amqp.Error{Code: amqp.NotAllowed, Reason: "NOT_ALLOWED - vhost nope not found"}, 5},
		"no such vhost, management":  {t.Context(), fmt.Errorf("plan: %w", rabbit.ErrNoVhost), 5},
		"management refuses":         {t.Context(), fmt.Errorf("plan: %w", rabbit.ErrManagementDenied), 4},
		"management away":            {t.Context(), fmt.Errorf("plan: %w", rabbit.ErrManagementUnreachable), 5},
		"vhost refused":              {t.Context(), &amqp.Error{Code: amqp.NotAllowed, Reason: "NOT_ALLOWED - access to vhost 'x' refused for user 'y'"}, 4},
		"not allowed":                {t.Context(), &amqp.Error{Code: amqp.NotAllowed, Reason: "NOT_ALLOWED - attempt to reuse consumer tag"}, 1},
		"unreachable":                {t.Context(), unreachable(errors.New("x"), ""), 5},
		"connection refused":         {t.Context(), fmt.Errorf("dial: %w", refused), 5},
		"no such host":               {t.Context(), &net.DNSError{Err: "try again", IsTemporary: true}, 5},
		"unknown host":               {t.Context(), &net.DNSError{Err: "no such host", IsNotFound: true}, 5},
		"database starts":            {t.Context(), &pgconn.PgError{Code: "57P03"}, 5},
		"connection lost":            {t.Context(), amqp.ErrClosed, 5},
		"circuit open":               {t.Context(), circuitbreaker.ErrOpen, 5},
		"marked away":                {t.Context(), resilience.Unavailable(errors.New("x")), 5},
		"dial timeout":               {t.Context(), &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}, 5},
		"differs":                    {t.Context(), differs("x"), 6},
		"interrupted":                {cancelled, fmt.Errorf("read: %w", context.Canceled), 130},
		"failed while interrupted":   {cancelled, errors.New("x"), 1},
		"cancelled by somebody else": {t.Context(), context.Canceled, 1},
		"missing file":               {t.Context(), fs.ErrNotExist, 1},
		"reported":                   {t.Context(), reported(t.Context(), app.ErrNothingToRun), 2},
		"joined, one chosen":         {t.Context(), errors.Join(errors.New("x"), partly(errors.New("y"))), 3},
	} {
		require.Equal(t, tt.want, exitCode(tt.ctx, tt.err), name)
	}
}

func TestATraceIsALinkWhereTheConfigurationHasOne(t *testing.T) {
	t.Parallel()
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	s := newSession(Env{Environ: []string{"SUREFOOT_TRACING_LINK=https://traces.example.com/{id}"}, ReadFile: func(string) ([]byte, error) { return nil, fs.ErrNotExist }})
	s.globalFlags(pflag.NewFlagSet("test", pflag.ContinueOnError))
	require.Equal(t, id, s.traceText(id))
	_, err := s.config(need{})
	require.NoError(t, err)
	require.Equal(t, id+"  https://traces.example.com/"+id, s.traceText(id))
	require.Empty(t, s.traceText(""))
	s.env.Environ = []string{"SUREFOOT_TRACING_LINK=javascript:alert({id})"}
	_, err = s.config(need{})
	require.ErrorContains(t, err, "tracing.link: must be the URL of a trace")
}
