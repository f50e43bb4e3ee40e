package shop

import (
	"context"

	"github.com/surefoot-mq/surefoot/examples/shop/mail"
	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// Mailer hands mails to a mail server, behind a policy: while its circuit is open the notifications' queue is paused, and what
// waits there waits. It is safe for concurrent use.
type Mailer struct {
	*mail.Client
	// Policy guards the mail server.
	Policy *policy.Policy
	http   *httpclient.Client
}

// NewMailer returns a mailer for the server at a URL, with the options of the shop that it works for. It does no I/O. Limits nil
// are those of [DefaultLimits]. Close lets its connections go.
func NewMailer(o Options, url string, limits *resilience.Settings) (*Mailer, error) {
	settings := DefaultLimits().Mail
	if limits != nil {
		settings = *limits
	}
	guard, err := (&Shop{options: o}).guard(MailName, settings)
	if err != nil {
		return nil, err
	}
	client, err := httpclient.New(httpclient.Options{Policy: guard})
	if err != nil {
		return nil, err
	}
	return &Mailer{Client: mail.NewClient(url, client), Policy: guard, http: client}, nil
}

// Run writes down the state of the circuit until ctx ends; then it returns nil. Mails do not need it.
func (m *Mailer) Run(ctx context.Context) error { return m.Policy.Run(ctx) }

// Close lets idle connections go.
func (m *Mailer) Close() { m.http.Close() }
