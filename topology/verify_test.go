package topology_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/topology"
)

func workArguments(q string, changes amqp.Table) amqp.Table {
	return changed(amqp.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "shop.dlx", "x-dead-letter-routing-key": q,
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": 20,
	}, changes)
}

func retryArguments(q string, changes amqp.Table) amqp.Table {
	return changed(amqp.Table{
		"x-queue-type": "quorum", "x-dead-letter-exchange": "shop.retry", "x-dead-letter-routing-key": q,
		"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-message-ttl": 1000,
	}, changes)
}

func dlqArguments(changes amqp.Table) amqp.Table {
	return changed(amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 1000000}, changes)
}

// changed sets arguments, and removes those that are nil.
func changed(arguments, changes amqp.Table) amqp.Table {
	maps.Copy(arguments, changes)
	maps.DeleteFunc(arguments, func(_ string, v any) bool { return v == nil })
	return arguments
}

// Each case spoils the path of a queue of its own, in one vhost, and names the one finding that must come.
func TestVerifyRefusesEveryLossyPath(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cases := []struct {
		name, about, problem, mend string
		spoil                      func(t *testing.T, q string)
	}{
		{"no dead-letter queue", ".dlq", "is missing (the dead-letter queue)", "topology apply", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.delete(t, q+".dlq")
		}},
		{"no retry queue", ".retry", "is missing (a retry queue)", "topology apply", func(t *testing.T, q string) { s.delete(t, q+".retry") }}, //nolint:thelper // a case, not a helper
		{"no work queue", "", "is missing (the work queue)", "topology apply", func(t *testing.T, q string) { s.delete(t, q) }},                //nolint:thelper // a case, not a helper
		{"no dead-letter exchange", "", "has no dead-letter exchange", "topology plan", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareWork(t, q, amqp.Table{"x-dead-letter-exchange": nil, "x-dead-letter-routing-key": nil, "x-dead-letter-strategy": nil})
			s.policy(t, "policies", q, "^"+q+"$", map[string]any{"dead-letter-strategy": "at-least-once"})
		}},
		{"exchange missing", "", `dead-letters to exchange "gone", which is missing`, "topology apply", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareWork(t, q, amqp.Table{"x-dead-letter-exchange": "gone"})
		}},
		{"not bound", "", `no binding leads to "%s.dlq"`, "topology apply", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.do(t, func(ch *amqp.Channel) error { return ch.QueueUnbind(q+".dlq", q, "shop.dlx", nil) })
		}},
		{"without a routing key", "", `no binding leads to "%s.dlq"`, "topology apply", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareWork(t, q, amqp.Table{"x-dead-letter-routing-key": nil})
		}},
		{"at most once", "", "dead-letters at most once", "at-least-once", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareWork(t, q, amqp.Table{"x-dead-letter-strategy": nil})
		}},
		{"without reject-publish", "", "has no overflow=reject-publish", "reject-publish", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareWork(t, q, amqp.Table{"x-overflow": nil})
		}},
		{"no delivery limit", "", "has no delivery limit of its own", "set delivery-limit to 20", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareWork(t, q, amqp.Table{"x-delivery-limit": nil})
		}},
		{"delivery limit lowered by a policy", "", "lowered to 3 by policy", "remove delivery-limit there", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.policy(t, "policies", q, "^"+q+"$", map[string]any{"delivery-limit": 3})
		}},
		{"dead letters back to work", "", "the broker drops a message that comes around a second time", "unbind", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.bind(t, "shop.dlx", q, q)
		}},
		{"dead letters to retry", "", "the broker drops a message that comes around a second time", "unbind", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.bind(t, "shop.dlx", q+".retry", q)
		}},
		{"classic dead-letter queue", ".dlq", "is a classic queue", "quorum queue beside it", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareDLQ(t, q, amqp.Table{"x-queue-type": "classic", "x-delivery-limit": nil})
			s.policy(t, "policies", q, "^"+q+".dlq$", map[string]any{"delivery-limit": 1000000})
		}},
		{"dead-letter queue expires", ".dlq", "expires (argument x-expires)", "remove", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareDLQ(t, q, amqp.Table{"x-expires": 3600000})
		}},
		{"retry queue expires by a policy", ".retry", "expires (policy ", "remove", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.policy(t, "policies", q, "^"+q+".retry$", map[string]any{"expires": 3600000})
		}},
		{"dead letters expire", ".dlq", "lets messages expire", "remove", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareDLQ(t, q, amqp.Table{"x-message-ttl": 3600000})
		}},
		{"dead letters expire by an operator's policy", ".dlq", "lets messages expire (operator policy ", "remove", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.policy(t, "operator-policies", q, "^"+q+".dlq$", map[string]any{"message-ttl": 3600000})
		}},
		{"dead-letter queue drops its head", ".dlq", "drops its oldest messages", "reject-publish", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.policy(t, "policies", q, "^"+q+".dlq$", map[string]any{"max-length": 5})
		}},
		{"dead-letter queue without a delivery limit", ".dlq", "has no delivery limit of its own: from 4.0 it is 20", "1000000", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareDLQ(t, q, amqp.Table{"x-delivery-limit": nil})
		}},
		{"dead-letter queue with a small delivery limit", ".dlq", "has the delivery limit 20 (argument x-delivery-limit)", "raise it", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareDLQ(t, q, amqp.Table{"x-delivery-limit": 20})
		}},
		{"retry without a TTL", ".retry", "has no message TTL", "topology apply", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareRetry(t, q, amqp.Table{"x-message-ttl": nil})
		}},
		{"retry sooner than configured", ".retry", "returns messages after 500ms (policy ", "agree", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.policy(t, "policies", q, "^"+q+".retry$", map[string]any{"message-ttl": 500})
		}},
		{"retry does not come home", ".retry", `no binding leads to "%s"`, "topology apply", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.do(t, func(ch *amqp.Channel) error { return ch.QueueUnbind(q, q, "shop.retry", nil) })
		}},
		{"retry at most once", ".retry", "dead-letters at most once", "at-least-once", func(t *testing.T, q string) { //nolint:thelper // a case, not a helper
			s.redeclareRetry(t, q, amqp.Table{"x-dead-letter-strategy": nil})
		}},
	}
	queues := make([]topology.Queue, len(cases)+1)
	for i := range queues {
		queues[i] = topology.Queue{Name: fmt.Sprintf("q%d", i), Bindings: []string{"#"}, Retry: []time.Duration{time.Second}}
	}
	s.apply(t, queues...)
	for i, c := range cases {
		c.spoil(t, queues[i].Name)
	}

	to := s.topology(t, queues...)
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			q := queues[i].Name
			report, err := to.Verify(t.Context(), q)
			require.NoError(t, err)
			require.Len(t, report.Findings, 1, "%+v", report.Findings)
			problem := c.problem
			if strings.Contains(problem, "%s") {
				problem = fmt.Sprintf(problem, q)
			}
			require.Equal(t, q+c.about, report.Findings[0].Queue)
			require.Contains(t, report.Findings[0].Problem, problem)
			require.Contains(t, report.Findings[0].Mend, c.mend)
			require.ErrorIs(t, report.Err(), topology.ErrUnsafe)
			require.ErrorContains(t, report.Err(), problem)
		})
	}
	t.Run("control", func(t *testing.T) {
		report, err := to.Verify(t.Context(), queues[len(cases)].Name)
		require.NoError(t, err)
		require.NoError(t, report.Err())
		require.Empty(t, report.Unchecked)
	})
}

func (s *stage) delete(t *testing.T, name string) {
	t.Helper()
	s.do(t, func(ch *amqp.Channel) error { _, err := ch.QueueDelete(name, false, false, false); return err })
}

func (s *stage) redeclareWork(t *testing.T, q string, changes amqp.Table) {
	t.Helper()
	s.declare(t, q, workArguments(q, changes))
	s.bind(t, "shop.retry", q, q)
}

func (s *stage) redeclareRetry(t *testing.T, q string, changes amqp.Table) {
	t.Helper()
	s.declare(t, q+".retry", retryArguments(q, changes))
}

func (s *stage) redeclareDLQ(t *testing.T, q string, changes amqp.Table) {
	t.Helper()
	s.declare(t, q+".dlq", dlqArguments(changes))
	s.bind(t, "shop.dlx", q+".dlq", q)
}

func TestVerifyReadsArgumentsAndPoliciesAsOne(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	// What may change later can be a policy: nothing here is an argument but the type.
	s.apply(t, topology.Queue{Name: "q", Retry: []time.Duration{time.Second}})
	for _, name := range []string{"q", "q.retry", "q.dlq"} {
		s.declare(t, name, amqp.Table{"x-queue-type": "quorum"})
	}
	s.bind(t, "shop.dlx", "q.dlq", "q")
	s.bind(t, "shop.retry", "q", "q")
	lossless := map[string]any{"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "dead-letter-routing-key": "q"}
	work, retry := maps.Clone(lossless), maps.Clone(lossless)
	maps.Copy(work, map[string]any{"dead-letter-exchange": "shop.dlx", "delivery-limit": 20})
	maps.Copy(retry, map[string]any{"dead-letter-exchange": "shop.retry", "message-ttl": 1000})
	s.policy(t, "policies", "work", "^q$", work)
	s.policy(t, "policies", "retry", `^q\.retry$`, retry)
	s.policy(t, "policies", "dlq", `^q\.dlq$`, map[string]any{"delivery-limit": 1000000})

	report, err := s.topology(t, topology.Queue{Name: "q", Retry: []time.Duration{time.Second}}).Verify(t.Context(), "q")
	require.NoError(t, err)
	require.NoError(t, report.Err())
}

func TestVerifyWithoutManagementLooksAtWhatItCan(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.apply(t, topology.Queue{Name: "q"})
	path := topology.Queue{Name: "q"}.Path()

	report, err := topology.Verify(t.Context(), s.conn, nil, path)
	require.NoError(t, err)
	require.NoError(t, report.Err())
	require.Len(t, report.Unchecked, 1)

	s.delete(t, "q.dlq")
	report, err = topology.Verify(t.Context(), s.conn, nil, path)
	require.NoError(t, err)
	require.ErrorContains(t, report.Err(), `queue "q.dlq" is missing`)

	_, err = s.topology(t, topology.Queue{Name: "q"}).Verify(t.Context(), "other")
	require.ErrorContains(t, err, "not in the spec")
}
