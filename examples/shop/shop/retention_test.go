package shop_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/mail"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/examples/shop/shop"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
)

// tables are all of the services that grow, with the column of their time.
func (tl *till) tables() map[string]string {
	return map[string]string{
		tl.shop.Orders.Schema() + ".orders": "status_at", tl.shop.Orders.Schema() + ".order_lines": "", tl.shop.Orders.Schema() + ".order_attempts": "started_at",
		tl.shop.Orders.Schema() + ".recovery_cases":       "closed_at",
		tl.shop.Inventory.Schema() + ".reservations":      "ended_at",
		tl.shop.Inventory.Schema() + ".reservation_lines": "",
		tl.shop.Payments.Schema() + ".payments":           "status_at", tl.shop.Payments.Schema() + ".payment_attempts": "at",
		tl.shop.Notifications.Schema() + ".mails": "sent_at",
	}
}

// history leaves an order of each tenant that has ended by recovery, and one of alpine that is under way.
func (tl *till) history() {
	tl.t.Helper()
	require.NoError(tl.t, tl.simulator.SetRules(provider.Rule{Fault: provider.FaultHang, Times: 1}))
	for _, tenant := range []string{"alpine", "bazaar"} {
		require.Equal(tl.t, http.StatusAccepted, tl.front.ask(http.MethodPost, "/v1/orders", tenant, "k1", syncOrder).status)
	}
	require.Equal(tl.t, orders.Recovered{Taken: 2, Accepted: 2}, tl.recover(tl.recovery))
	tl.run()
}

func TestEveryTableHasARetention(t *testing.T) {
	tl := newTill(t)
	tl.history()
	require.NoError(t, tl.simulator.SetRules(provider.Rule{Fault: provider.FaultHangBefore}))
	require.Equal(t, http.StatusAccepted, tl.buy("later").status)
	before := map[string]int{}
	for table := range tl.tables() {
		before[table] = tl.count(`SELECT count(*) FROM ` + table)
		require.NotZero(t, before[table], table)
	}
	deleted, err := tl.shop.Clean(t.Context())
	require.NoError(t, err)
	for table, n := range deleted {
		require.Zero(t, n, table)
	}
	for table, column := range tl.tables() {
		if column == "" {
			continue
		}
		_, err := tl.Pool.Exec(t.Context(), `ALTER TABLE `+table+` DISABLE TRIGGER USER; UPDATE `+table+` SET `+column+` = `+column+` - interval '2 years'`)
		require.NoError(t, err)
	}
	_, err = tl.shop.Clean(t.Context())
	require.NoError(t, err)
	for table, left := range map[string]int{"orders": 1, "order_lines": 1, "recovery_cases": 1, "order_attempts": 0} {
		require.Equal(t, left, tl.count(`SELECT count(*) FROM `+tl.shop.Orders.Schema()+`.`+table), table)
	}
	require.Equal(t, 1, tl.count(`SELECT count(*) FROM `+tl.shop.Inventory.Schema()+`.reservations`), "what is held is kept")
	require.Equal(t, 1, tl.count(`SELECT count(*) FROM `+tl.shop.Payments.Schema()+`.payments`), "what is not known is kept")
	require.Zero(t, tl.count(`SELECT count(*) FROM `+tl.shop.Notifications.Schema()+`.mails`))
	require.Equal(t, 4, tl.count(`SELECT sold FROM `+tl.shop.Inventory.Schema()+`.stock WHERE sku = 'tea'`))
	account, err := tl.shop.Account(t.Context(), books{}, stock)
	require.NoError(t, err)
	require.NotContains(t, join(account.Violations), "stock leaked")
}

// What is one tenant's goes, whole, and nothing else; while something of it is under way, nothing does.
func TestATenantIsErased(t *testing.T) {
	tl := newTill(t)
	tl.history()
	require.NoError(t, tl.simulator.SetRules(provider.Rule{Fault: provider.FaultHangBefore, Times: 1}))
	require.Equal(t, http.StatusAccepted, tl.buy("later").status)
	var busy *shop.BusyError
	require.ErrorAs(t, tl.shop.Erase(t.Context(), "alpine"), &busy)
	require.Equal(t, &shop.BusyError{Tenant: "alpine", Orders: 1, Reservations: 1, Payments: 1}, busy)
	require.NoError(t, tl.simulator.SetRules())
	require.Equal(t, 1, tl.recover(tl.newRecovery(orders.RecoveryOptions{FinishWithin: 1})).Compensated)
	tl.run()
	require.NoError(t, tl.shop.Erase(t.Context(), "alpine"))
	for table := range tl.tables() {
		if table == tl.shop.Orders.Schema()+".order_lines" {
			require.Equal(t, 1, tl.count(`SELECT count(*) FROM `+table))
			continue
		}
		require.Zero(t, tl.count(`SELECT count(*) FROM `+table+` WHERE tenant = 'alpine'`), table)
		require.NotZero(t, tl.count(`SELECT count(*) FROM `+table+` WHERE tenant = 'bazaar'`), table)
	}
	require.Zero(t, tl.count(`SELECT count(*) FROM `+tl.shop.Customers.Schema()+`.customers WHERE tenant = 'alpine'`))
	require.Zero(t, tl.count(`SELECT count(*) FROM `+tl.Schema+`.idempotency WHERE caller = 'alpine'`))
	require.Equal(t, 1, tl.count(`SELECT count(*) FROM `+tl.Schema+`.idempotency WHERE caller = 'bazaar'`))
	require.Equal(t, 2, tl.count(`SELECT sold FROM `+tl.shop.Inventory.Schema()+`.stock WHERE sku = 'tea'`))
	require.Equal(t, 96, tl.teas())
}

// While mail is down its circuit opens, and then the queue is paused: no attempt is counted, nothing is lost, and each mail is one.
func TestNotificationsWaitForTheMail(t *testing.T) {
	server := mail.NewServer()
	var mailer *shop.Mailer
	b := newBench(t, func(o *shop.Options) {
		var err error
		limits := resilience.Settings{Retry: resilience.Retry{Attempts: 1}, Breaker: resilience.Breaker{Failures: 2, Consecutive: true, Open: 50 * time.Millisecond}}
		mailer, err = shop.NewMailer(*o, serveRoutes(t, server.Routes), &limits)
		require.NoError(t, err)
		t.Cleanup(mailer.Close)
		o.Mailer = mailer
	})
	server.Down(true)
	for _, key := range []string{"a", "b", "c", "d"} {
		b.submit(func(o *orders.Order) { o.IdempotencyKey = key })
	}
	b.run()
	require.Len(t, b.failed, 4)
	unavailable := 0
	for _, d := range b.failed {
		require.Equal(t, "notifications.mail", d.role.Queue)
		if resilience.Classify(d.err) == resilience.ClassUnavailable {
			unavailable++
		}
	}
	require.Equal(t, 2, unavailable, "those that met the open circuit pause the queue")
	require.False(t, resilience.ClassUnavailable.Counts())
	require.Zero(t, b.account().Pending, "the saga does not wait")
	require.Empty(t, server.Mails())
	server.Down(false)
	testkit.Eventually(t, 10*time.Second, "the mails", func() bool { b.retry(); return len(b.failed) == 0 })
	require.Len(t, server.Mails(), 4)
	for _, m := range server.Mails() {
		require.NoError(t, mailer.Send(t.Context(), m))
	}
	require.Len(t, server.Mails(), 4, "the same again is one mail")
}

// scenarios.md: what the limits of the shop are.
func TestLimitsAreThoseOfTheScenarios(t *testing.T) {
	t.Parallel()
	l := shop.DefaultLimits()
	require.Equal(t, resilience.Settings{
		Deadline: 1200 * time.Millisecond, Timeout: 300 * time.Millisecond,
		Breaker:  resilience.Breaker{Failures: 8, Consecutive: true, Probes: 2},
		Bulkhead: resilience.Bulkhead{Active: 20, Queue: 40, PerTenant: 4, Reserve: 2},
	}, l.Inventory)
	require.Equal(t, 3, l.Inventory.WithDefaults().Retry.Attempts)
	p := l.Provider
	require.Equal(t, [6]int64{5e9, 3, 5e8, 5e9, 5, 3e10}, [6]int64{int64(p.Timeout), int64(p.Retry.Attempts), int64(p.Retry.Base), int64(p.Retry.Max), int64(p.Breaker.Failures), int64(p.Breaker.Window)})
	require.Equal(t, [2]int64{6e10, 10}, [2]int64{int64(p.Breaker.Open), int64(p.Bulkhead.Active)})
	for name, s := range map[string]resilience.Settings{"catalog": l.Catalog, "customers": l.Customers, "inventory": l.Inventory, "payments": l.Payments, "provider": p, "mail": l.Mail} {
		require.NoError(t, s.Validate(), name)
		require.Empty(t, s.Warnings(), name)
	}
}
