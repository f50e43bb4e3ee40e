package provider_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/surefoot-mq/surefoot/examples/shop/provider"
	"github.com/surefoot-mq/surefoot/resilience"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T) (*provider.Simulator, *provider.Client) {
	t.Helper()
	t.Parallel()
	simulator := provider.NewSimulator()
	server := httptest.NewServer(simulator)
	t.Cleanup(func() { _ = simulator.SetRules(); server.CloseClientConnections(); server.Close() })
	client, err := provider.NewClient(provider.ClientOptions{URL: server.URL, Timeout: 200 * time.Millisecond})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return simulator, client
}

var request = provider.ChargeRequest{OrderID: "o", Tenant: "t", AmountCents: 100, Currency: "EUR", Card: provider.CardGood}

func TestKeyIsChargedOnceHoweverOftenItIsAsked(t *testing.T) {
	simulator, client := start(t)
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wg.Go(func() {
			if charge, err := client.Charge(t.Context(), "k", request); err == nil {
				ids[i] = charge.ID
			}
		})
	}
	wg.Wait()
	for _, id := range ids {
		require.Equal(t, ids[0], id)
		require.NotEmpty(t, id)
	}
	ledger := simulator.Ledger()
	require.Len(t, ledger.Charges, 1)
	require.Equal(t, 8, ledger.ChargeRequests["k"])
	other := request
	other.AmountCents++
	_, err := client.Charge(t.Context(), "k", other)
	require.Equal(t, resilience.ClassPermanent, resilience.Classify(err), "another body under the key: %v", err)
}

func TestReversalSettlesEveryHistory(t *testing.T) {
	simulator, client := start(t)
	charge, err := client.Charge(t.Context(), "charged", request)
	require.NoError(t, err)
	for range 3 {
		reversal, err := client.Reverse(t.Context(), "charged")
		require.NoError(t, err)
		require.Equal(t, charge.ID, reversal.ChargeID)
		require.NotEmpty(t, reversal.RefundID)
		reversal, err = client.Reverse(t.Context(), "never")
		require.NoError(t, err)
		require.Empty(t, reversal.RefundID)
	}
	for _, key := range []string{"charged", "never"} {
		_, err = client.Charge(t.Context(), key, request)
		require.ErrorIs(t, err, provider.ErrReversed)
	}
	require.Len(t, simulator.Ledger().Charges, 1)
	require.Len(t, simulator.Ledger().Refunds, 1)
}

func TestFaults(t *testing.T) {
	_, client := start(t)
	ctx := t.Context()
	require.NoError(t, client.SetRules(ctx,
		provider.Rule{Key: "busy", Fault: provider.FaultUnavailable, Times: 1},
		provider.Rule{Key: "no", Fault: provider.FaultDeclined, Times: 1},
		provider.Rule{Key: "after", Fault: provider.FaultHang, Times: 1},
		provider.Rule{Key: "before", Fault: provider.FaultHangBefore, Times: 1},
		provider.Rule{Key: "slow", Fault: provider.FaultSlow, Times: 1, DelayMS: 10},
	))
	_, err := client.Charge(ctx, "busy", request)
	require.Equal(t, resilience.ClassTransient, resilience.Classify(err))
	after, asked := resilience.DelayOf(err)
	require.True(t, asked)
	require.Equal(t, time.Second, after)
	for range 2 {
		_, err = client.Charge(ctx, "no", request)
		require.ErrorIs(t, err, provider.ErrDeclined, "a decision is final for its key")
	}
	_, err = client.Charge(ctx, "slow", request)
	require.NoError(t, err)
	for key, charges := range map[string]int{"after": 1, "before": 0} {
		_, err = client.Charge(ctx, key, request)
		var uncertain *provider.UncertainError
		require.ErrorAs(t, err, &uncertain)
		require.Equal(t, resilience.ClassTimeout, resilience.Classify(err))
		_, err = client.Check(ctx, key)
		require.Equal(t, charges == 1, err == nil, "%s: %v", key, err)
	}
	ledger, err := client.Ledger(ctx)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"after", "before"}, ledger.Checks)
	require.ErrorContains(t, client.SetRules(ctx, provider.Rule{Fault: "odd"}), "400")
}

func TestRefusedConnectionIsCertain(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(nil)
	url := server.URL
	server.Close()
	client, err := provider.NewClient(provider.ClientOptions{URL: url})
	require.NoError(t, err)
	_, err = client.Charge(t.Context(), "k", request)
	var uncertain *provider.UncertainError
	require.NotErrorAs(t, err, &uncertain)
	require.Equal(t, resilience.ClassTransient, resilience.Classify(err))
	_, err = provider.NewClient(provider.ClientOptions{URL: "localhost:1"})
	require.Error(t, err)
}

// What is no answer about the key that was asked for has told nothing: taken for one, an order would be paid that is not, or money
// kept that was to be paid back.
func TestAnAnswerAboutSomethingElseIsADoubt(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"nothing": `{}`, "null": `null`, "empty": ``, "a page": `<html>welcome</html>`, "another's": `{"chargeId":"ch_1","key":"other","amountCents":100}`,
		"another amount": `{"chargeId":"ch_1","key":"k","amountCents":1,"refundId":"re_1"}`, "no id": `{"key":"k","amountCents":100,"refundId":"re_1"}`,
		"not plain": `{"chargeId":"ch\u0000","key":"k","amountCents":100,"refundId":"\u001b[2J"}`, "cut off": `{"chargeId":"ch_1","key":"k","amou`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }))
			t.Cleanup(server.Close)
			client, err := provider.NewClient(provider.ClientOptions{URL: server.URL})
			require.NoError(t, err)
			t.Cleanup(client.Close)
			_, charged := client.Charge(t.Context(), "k", request)
			errs := map[string]error{"charge": charged}
			if name != "another amount" { // whoever only asks does not say how much
				_, errs["check"] = client.Check(t.Context(), "k")
				_, errs["reverse"] = client.Reverse(t.Context(), "k")
			}
			for op, err := range errs {
				var doubt *provider.UncertainError
				require.ErrorAs(t, err, &doubt, op)
			}
		})
	}
}
