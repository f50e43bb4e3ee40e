package shop_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
)

// The rule reconcile-reservations of the shop's own configuration, against the shop's own services.
func TestReservationsOfCancelledAndUnknownOrdersAreReleased(t *testing.T) {
	b := newBench(t)
	var ids []string
	for _, key := range []string{"k1", "k2", "k3", "k4"} {
		ids = append(ids, b.submit(func(o *orders.Order) { o.IdempotencyKey = key }))
	}
	b.run(func(d delivery) bool { return d.msg.Type == event.TypeStockReserved }) // reserved, and not paid yet
	b.waiting = nil
	cancelled, unknown, healthy, young := ids[0], ids[1], ids[2], ids[3]
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := b.Pool.Exec(t.Context(), strings.ReplaceAll(sql, "shop_", b.Schema+"_"), args...)
		require.NoError(t, err)
	}
	reservation := func(order string) (status string) {
		t.Helper()
		require.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT status FROM `+b.Schema+`_inventory.reservations WHERE order_id = $1`, order).Scan(&status))
		return status
	}
	for _, id := range ids {
		require.Equal(t, "ACTIVE", reservation(id))
	}
	// What must not be and is: the order ended without a word to the inventory.
	exec(`UPDATE shop_orders.orders SET status = 'CANCELLED', reason = 'PAYMENT_TIMEOUT' WHERE id = $1`, cancelled)
	exec(`DELETE FROM shop_orders.orders WHERE id = $1`, unknown)
	exec(`UPDATE shop_inventory.reservations SET created_at = now() - interval '21 minutes' WHERE order_id <> $1`, young)

	text, err := os.ReadFile("../surefoot.yaml")
	require.NoError(t, err)
	text = bytes.ReplaceAll(text, []byte("shop_"), []byte(b.Schema+"_"))
	c, err := config.Load(config.Sources{Path: "surefoot.yaml", ReadFile: func(string) ([]byte, error) { return text, nil }})
	require.NoError(t, err)
	c.Database.Schema = b.Schema
	var log bytes.Buffer
	r, err := app.NewReconciler(app.ReconcilerOptions{Config: c, Pool: b.Pool, Logger: zerolog.New(zerolog.SyncWriter(&log))})
	require.NoError(t, err)
	warnings, err := r.Check(t.Context())
	require.NoError(t, err)
	require.Empty(t, warnings)
	results, err := r.Once(t.Context(), "reconcile-reservations")
	require.NoError(t, err)
	require.Equal(t, []int{3, 2, 1}, []int{results[0].Checked, results[0].Mismatches, results[0].Kept})
	require.Equal(t, 2, strings.Count(log.String(), `"message":"reservation discrepancy"`))
	require.Equal(t, 2, strings.Count(log.String(), `"level":"error"`))

	b.run()
	require.Empty(t, b.failed)
	require.Equal(t, []string{"RELEASED", "RELEASED", "ACTIVE", "ACTIVE"},
		[]string{reservation(cancelled), reservation(unknown), reservation(healthy), reservation(young)})
	account, err := b.shop.Account(t.Context(), b.client, stock)
	require.NoError(t, err)
	for _, o := range account.Orders {
		require.Equal(t, o.ID == cancelled, o.Status == orders.StatusCancelled, "healthy orders are not touched")
	}
	require.Equal(t, []string{"order " + unknown + " is known to a service, but not to the orders"}, account.Violations, "stock that was held is for sale again, once")
	results, err = r.Once(t.Context())
	require.NoError(t, err)
	require.Zero(t, results[0].Checked, "nothing is left to ask about")
}
