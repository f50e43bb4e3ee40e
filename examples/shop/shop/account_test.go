package shop_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/provider"
)

// books is a ledger as a test wants it.
type books provider.Ledger

// Ledger implements shop.LedgerReader.
func (b books) Ledger(context.Context) (provider.Ledger, error) { return provider.Ledger(b), nil }

func TestBooksThatDoNotAgreeAreViolations(t *testing.T) {
	b := newBench(t)
	id := b.submit()
	b.run()
	good := b.simulator.Ledger()
	charge := good.Charges[0]
	refund := provider.Reversal{Key: id, RefundID: "re", ChargeID: charge.ID, AmountCents: charge.AmountCents}
	stray := charge
	stray.Key = "nobody"
	for want, ledger := range map[string]books{
		"was charged 2 times":              {Charges: []provider.Charge{charge, charge}},
		"the provider kept 0 cents":        {},
		"for order nobody, which is not":   {Charges: []provider.Charge{charge, stray}},
		"was refunded 2 times for 1":       {Charges: []provider.Charge{charge}, Refunds: []provider.Reversal{refund, refund}},
		"is confirmed, but the provider k": {Charges: []provider.Charge{charge}, Refunds: []provider.Reversal{refund}},
	} {
		account, err := b.shop.Account(t.Context(), ledger, stock)
		require.NoError(t, err)
		require.NotEmpty(t, account.Violations, want)
		require.Contains(t, join(account.Violations), want)
	}

	inventory, payments, order := b.shop.Inventory.Schema(), b.shop.Payments.Schema(), b.shop.Orders.Schema()
	for _, c := range []struct{ spoil, mend, want string }{
		{`UPDATE ` + inventory + `.stock SET available = available + 1 WHERE sku = 'tea'`, `UPDATE ` + inventory + `.stock SET available = available - 1 WHERE sku = 'tea'`, "item tea: 101 in stock"},
		{`UPDATE ` + inventory + `.reservations SET status = 'RELEASED'`, `UPDATE ` + inventory + `.reservations SET status = 'COMMITTED'`, "its reservation is RELEASED"},
		{`UPDATE ` + order + `.orders SET status = 'CANCELLED'`, `UPDATE ` + order + `.orders SET status = 'CONFIRMED'`, ""},
		{`INSERT INTO ` + payments + `.payments VALUES ('ghost', 't', 1, 'EUR', 'c', 'CHARGED')`, `DELETE FROM ` + payments + `.payments WHERE order_id = 'ghost'`, "ghost is known to a service"},
	} {
		_, err := b.Pool.Exec(t.Context(), c.spoil)
		require.NoError(t, err)
		account, err := b.shop.Account(t.Context(), b.client, stock)
		require.NoError(t, err)
		if c.want == "" {
			require.Equal(t, 1, account.Pending, "a cancelled order that keeps money is never an end")
		} else {
			require.Contains(t, join(account.Violations), c.want)
		}
		_, err = b.Pool.Exec(t.Context(), c.mend)
		require.NoError(t, err)
		b.account()
	}

	_, err := b.Pool.Exec(t.Context(), `UPDATE `+order+`.orders SET status = 'CANCELLED'; UPDATE `+payments+`.payments SET status = 'REFUNDED';
		UPDATE `+inventory+`.reservations SET status = 'RELEASED'; UPDATE `+inventory+`.stock SET available = 100 WHERE sku IN ('tea', 'cup')`)
	require.NoError(t, err)
	account, err := b.shop.Account(t.Context(), b.client, stock)
	require.NoError(t, err)
	require.Contains(t, join(account.Violations), "is cancelled, but the provider kept")
}

func join(lines []string) string { return strings.Join(lines, "\n") }
