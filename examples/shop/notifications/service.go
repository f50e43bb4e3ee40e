// Package notifications tells customers how their orders ended. It hangs beside the saga: its failures stay in
// its own queue and hold nobody up. While mail is down that queue is paused: messages stay where they are, and no attempt is counted.
package notifications

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/surefoot-mq/surefoot/consumer"
	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/mail"
	"github.com/surefoot-mq/surefoot/examples/shop/store"
	"github.com/surefoot-mq/surefoot/message"
)

// Name of the service and of its schema.
const Name = "notifications"

// Queue that the service consumes.
const Queue = "notifications.mail"

// Tables of the service. The primary key makes a mail about one thing one mail.
const Tables store.SQL = `
CREATE TABLE IF NOT EXISTS @schema@.mails (
    order_id text NOT NULL,
    kind     text NOT NULL,
    tenant   text NOT NULL,
    subject  text NOT NULL,
    sent_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (order_id, kind)
);`

// BounceDomain is where no mail gets through: an order of such a customer leaves a dead letter here, and is
// none the worse for it.
const BounceDomain = "@bounce.example"

// Mailer hands a mail over, once for each order and kind. [*mail.Client] is one.
type Mailer interface {
	Send(ctx context.Context, m mail.Mail) error
}

// Options of the service.
type Options struct {
	// Prefix of the shop's schemas. Default: "shop".
	Prefix string
	// Mailer takes the mails. Default: none; the row stands for the mail.
	Mailer Mailer
}

// Service is the notifications service. It is safe for concurrent use.
type Service struct {
	schema string
	mailer Mailer
}

// Retention of the service's tables.
var Retention = []store.Retention{store.Old("mails", "sent_at", "true", 90*24*time.Hour)}

// New returns the service. It does no I/O.
func New(o Options) (*Service, error) {
	if err := store.CheckPrefix(o.Prefix); err != nil {
		return nil, fmt.Errorf("notifications: %w", err)
	}
	return &Service{schema: store.Schema(o.Prefix, Name), mailer: o.Mailer}, nil
}

// Schema is the service's own.
func (s *Service) Schema() string { return s.schema }

// Routes registers the service's handlers.
func (s *Service) Routes(mux *consumer.Mux) {
	consumer.On(mux, event.TypeOrderConfirmed, func(ctx context.Context, tx pgx.Tx, _ message.Message, e event.OrderConfirmed) error {
		if strings.HasSuffix(e.Customer.Email, BounceDomain) {
			return consumer.Permanent(fmt.Errorf("mail about order %s bounced: the customer's mailbox does not exist", e.OrderID))
		}
		return s.send(ctx, tx, e.Ref, "confirmed", "Your order is on its way")
	})
	consumer.On(mux, event.TypeOrderCancelled, func(ctx context.Context, tx pgx.Tx, _ message.Message, e event.OrderCancelled) error {
		return s.send(ctx, tx, e.Ref, "cancelled", "We had to cancel your order: "+message.Clip(e.Reason, 64))
	})
	consumer.On(mux, event.TypePaymentRefunded, func(ctx context.Context, tx pgx.Tx, _ message.Message, e event.PaymentRefunded) error {
		return s.send(ctx, tx, e.Ref, "refunded", "Your money is on its way back")
	})
}

const sendSQL store.SQL = `
INSERT INTO @schema@.mails (order_id, kind, tenant, subject) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING`

// send notes a mail in the same transaction as the inbox, and hands it over. When that commit fails the mail is handed over again,
// and its server knows it.
func (s *Service) send(ctx context.Context, tx pgx.Tx, ref event.Ref, kind, subject string) error {
	tag, err := tx.Exec(ctx, sendSQL.In(s.schema), ref.OrderID, kind, ref.Tenant, subject)
	if err != nil {
		return fmt.Errorf("note mail: %w", err)
	}
	if s.mailer == nil || tag.RowsAffected() == 0 {
		return nil
	}
	return s.mailer.Send(ctx, mail.Mail{OrderID: ref.OrderID, Tenant: ref.Tenant, Kind: kind, Subject: subject})
}

const eraseSQL store.SQL = `DELETE FROM @schema@.mails WHERE tenant = $1`

// Erase removes everything of a tenant.
func (s *Service) Erase(ctx context.Context, tx pgx.Tx, tenant string) error {
	if _, err := tx.Exec(ctx, eraseSQL.In(s.schema), tenant); err != nil {
		return fmt.Errorf("erase mails: %w", err)
	}
	return nil
}
