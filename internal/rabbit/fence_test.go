package rabbit_test

import (
	"context"
	"net/http"
	"net/url"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestAFenceIsHeldByOneConnectionAndTakenOverAtItsEnd(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	const name = "surefoot.fence.db.surefoot.3"
	owner := dial(t, rabbit.Options{URL: broker.URL})
	require.NoError(t, rabbit.Fence(t.Context(), owner, name))
	require.NoError(t, rabbit.Fence(t.Context(), owner, name), "one's own is held already")

	for end, finish := range map[string]func(){
		"closed":  func() { require.NoError(t, owner.Close()) },
		"dropped": func() { owner.Abort(context.Canceled) },
	} {
		next := dial(t, rabbit.Options{URL: broker.URL})
		err := rabbit.Fence(t.Context(), next, name)
		require.ErrorIs(t, err, rabbit.ErrFenced)
		require.Equal(t, amqp.ResourceLocked, rabbit.Code(err))
		require.NoError(t, next.Err(), "it can try again on the same connection")
		finish()
		testkit.EventuallyNil(t, 5*time.Second, "the fence after the owner's connection was "+end, func() error {
			return rabbit.Fence(t.Context(), next, name)
		})
		owner = next
	}
}

func TestAFenceWithoutPermissionSaysWhatToDo(t *testing.T) {
	t.Parallel()
	broker := testkit.Broker(t)
	user := testkit.Name("u")
	broker.API(t, http.MethodPut, "/api/users/"+user, map[string]string{"password": "s3cret", "tags": ""}, nil)
	t.Cleanup(func() {
		broker.API(detached{t, context.WithoutCancel(t.Context())}, http.MethodDelete, "/api/users/"+user, nil, nil)
	})
	broker.API(t, http.MethodPut, "/api/permissions/"+broker.Vhost+"/"+user, map[string]string{"configure": "^other$", "write": ".*", "read": ".*"}, nil)
	u, err := url.Parse(broker.URL)
	require.NoError(t, err)
	u.User = url.UserPassword(user, "s3cret")
	conn := dial(t, rabbit.Options{URL: u.String()})
	err = rabbit.Fence(t.Context(), conn, "surefoot.fence.1")
	require.Equal(t, amqp.AccessRefused, rabbit.Code(err))
	require.NotErrorIs(t, err, rabbit.ErrFenced)
	require.ErrorContains(t, err, "configure permission")

	m, err := rabbit.NewManagement(rabbit.ManagementOptions{AMQPURL: u.String(), URL: broker.ManagementURL})
	require.NoError(t, err)
	_, err = m.Queues(t.Context())
	require.ErrorIs(t, err, rabbit.ErrManagementDenied)
	require.NotContains(t, err.Error(), "s3cret")
}

// detached is a test whose context outlives it, for clean-up.
type detached struct {
	testing.TB
	ctx context.Context
}

func (d detached) Context() context.Context { return d.ctx }
