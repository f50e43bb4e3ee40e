package httpclient_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/surefoot-mq/surefoot/resilience"
	"github.com/surefoot-mq/surefoot/resilience/httpclient"
	"github.com/surefoot-mq/surefoot/resilience/policy"
)

// A reservation is sent with a key, so that it may be sent again; the answer comes within the operation's budget, or a typed error.
func Example() {
	first := true
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if first {
			first = false
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintf(w, `{"reservation":%q}`, r.Header.Get(httpclient.HeaderKey))
	}))
	defer server.Close()

	inventory, err := policy.New(policy.Options{Name: "inventory", Settings: resilience.Settings{Deadline: 1200 * time.Millisecond, Timeout: 400 * time.Millisecond}})
	if err != nil {
		fmt.Println(err)
		return
	}
	client, err := httpclient.New(httpclient.Options{Policy: inventory})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()

	ctx, cancel := resilience.WithBudget(context.Background(), 3*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/v1/reservations", strings.NewReader(`{"order":"o-1"}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	r.Header.Set(httpclient.HeaderKey, "o-1")
	var made struct{ Reservation string }
	err = client.JSON(r, &made)
	attempts, _ := resilience.BudgetOf(ctx).Attempts()
	fmt.Println(made.Reservation, err, len(attempts))
	// Output: o-1 <nil> 2
}
