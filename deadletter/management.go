package deadletter

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/surefoot-mq/surefoot/internal/rabbit"
	"github.com/surefoot-mq/surefoot/message"
)

const (
	// managementLimit bounds one request; maxAnswer its answer.
	managementLimit = 10 * time.Second
	maxAnswer       = 64 << 20
)

// queueInfo is what the management API says about a queue.
type queueInfo struct {
	Name      string         `json:"name"`
	Type      string         `json:"type"`
	Arguments map[string]any `json:"arguments"`
	Policy    map[string]any `json:"-"`
	Messages  int            `json:"messages_ready"`
}

// UnmarshalJSON takes the policy too, which is a list when there is none.
func (q *queueInfo) UnmarshalJSON(data []byte) error {
	type plain queueInfo
	var raw struct {
		plain
		Policy json.RawMessage `json:"effective_policy_definition"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	*q = queueInfo(raw.plain)
	_ = json.Unmarshal(raw.Policy, &q.Policy) // "", [] or null: no policy
	return nil
}

// deliveryLimit is the lower of argument and policy; false when neither sets one.
func (q *queueInfo) deliveryLimit() (limit int64, set bool) {
	for _, value := range []any{q.Arguments["x-delivery-limit"], q.Policy["delivery-limit"]} {
		n, ok := message.Integer(value)
		if ok && (!set || n < limit) {
			limit, set = n, true
		}
	}
	return limit, set
}

// queues lists all queues of the vhost, queue one of them; nil when there is no such.
func (d *DeadLetters) queues(ctx context.Context) ([]queueInfo, error) {
	var all []queueInfo
	err := d.manage(ctx, "?disable_stats=true&enable_queue_totals=true", &all)
	return all, err
}

func (d *DeadLetters) queue(ctx context.Context, name string) (*queueInfo, error) {
	var q queueInfo
	if err := d.manage(ctx, "/"+url.PathEscape(name), &q); err != nil {
		return nil, err
	}
	return &q, nil
}

// manage reads from the management API. No error shows the password.
func (d *DeadLetters) manage(ctx context.Context, rest string, into any) error {
	base, err := url.Parse(d.opts.ManagementURL)
	uri, amqpErr := amqp.ParseURI(d.opts.AMQPURL)
	if err != nil || amqpErr != nil || base.Host == "" {
		return fmt.Errorf("management URL %s cannot be used; expected http://user:password@host:15672", rabbit.Redact(d.opts.ManagementURL))
	}
	user, password := uri.Username, uri.Password
	if base.User != nil {
		user = base.User.Username()
		password, _ = base.User.Password()
	}
	ctx, cancel := context.WithTimeout(ctx, managementLimit)
	defer cancel()
	target := base.Scheme + "://" + base.Host + strings.TrimSuffix(base.EscapedPath(), "/") + "/api/queues/" + url.PathEscape(uri.Vhost)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target+rest, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask the management API: %w", err)
	}
	request.SetBasicAuth(user, password)
	request.Close = true // it is asked once in a while: no connection is kept
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask the management API: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return &managementError{status: response.StatusCode}
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(into); err != nil {
		return fmt.Errorf("read the answer of the management API: %w", err)
	}
	return nil
}

// managementError is an answer other than 200.
type managementError struct{ status int }

// Error says what the status means here.
func (e *managementError) Error() string {
	switch e.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fmt.Sprintf("the management API refused (%d): the user needs the tag \"management\" and rights on the vhost", e.status)
	case http.StatusNotFound:
		return "the management API knows no such queue or vhost"
	}
	return fmt.Sprintf("the management API answered %d", e.status)
}
