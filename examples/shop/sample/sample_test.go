package sample_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/examples/shop/event"
	"github.com/surefoot-mq/surefoot/examples/shop/orders"
	"github.com/surefoot-mq/surefoot/examples/shop/sample"
)

// file is checked in; `go run ./examples/shop sample > examples/shop/testdata/orders.jsonl` writes it anew.
const file = "../testdata/orders.jsonl"

func TestFileIsWhatTheGeneratorWrites(t *testing.T) {
	t.Parallel()
	var want bytes.Buffer
	require.NoError(t, sample.Write(&want))
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	require.True(t, bytes.Equal(want.Bytes(), have), "orders.jsonl differs; run `go run ./examples/shop sample > examples/shop/testdata/orders.jsonl`")
	require.Less(t, len(have), 1_500_000)
	require.True(t, utf8.Valid(have))
}

func TestSampleHasWhatTheDemonstrationShows(t *testing.T) {
	t.Parallel()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	seen, tenants, lines, ends := map[string]int{}, map[string]int{}, map[int]int{}, map[string]int{}
	smallest, largest := 1<<30, 0
	require.NoError(t, sample.Read(f, func(_ int, o orders.Order) error {
		require.NoError(t, o.Validate())
		seen[o.ID()]++
		tenants[o.Tenant]++
		lines[len(o.Lines)]++
		status, reason := sample.Expected(o)
		ends[status+reason]++
		body, err := json.Marshal(event.OrderCreated{
			Ref: event.Ref{OrderID: o.ID(), Tenant: o.Tenant}, Customer: o.Customer, Lines: o.Lines, Note: o.Note,
			Payment: event.Payment{AmountCents: o.TotalCents(), Currency: "EUR", Card: o.Card},
		})
		smallest, largest = min(smallest, len(body)), max(largest, len(body))
		return err
	}))
	again := 0
	for _, times := range seen {
		again += times - 1
	}
	require.Len(t, seen, sample.Count)
	require.GreaterOrEqual(t, len(seen), 200)
	require.Equal(t, 1, again, "one order is sent twice")
	require.Len(t, tenants, 3)
	for n := 1; n <= orders.MaxLines; n++ {
		require.NotZero(t, lines[n], "orders with %d lines", n)
	}
	for _, end := range []string{"CONFIRMED", "CANCELLED" + event.ReasonOutOfStock, "CANCELLED" + event.ReasonCardDeclined, "CANCELLED" + event.ReasonPaymentTimeout} {
		require.NotZero(t, ends[end], end)
	}
	require.InDelta(t, 275, smallest, 75, "the smallest body has some 200 bytes")
	require.Greater(t, largest, 195<<10)
	require.LessOrEqual(t, largest, 200<<10)
}

func TestReadNamesTheLine(t *testing.T) {
	t.Parallel()
	none := func(int, orders.Order) error { return nil }
	require.ErrorContains(t, sample.Read(strings.NewReader("\n{}\n{\"tenat\":1}"), none), "line 3: not an order")
	require.ErrorContains(t, sample.Read(strings.NewReader("{} {}"), none), "line 1: more text")
	require.ErrorContains(t, sample.Read(strings.NewReader(strings.Repeat("x", 2<<20)), none), "line 1:")
}
