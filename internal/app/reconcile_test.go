package app_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/app"
	"github.com/surefoot-mq/surefoot/internal/config"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/resilience"
)

// The role asks another service under its policy, mends what is wrong, and shows in the metrics that it has run.
func TestReconcileRole(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	_, err := db.Pool.Exec(t.Context(), `CREATE TABLE `+db.Schema+`.holds (id text PRIMARY KEY, status text, since timestamptz);
		INSERT INTO `+db.Schema+`.holds VALUES ('1', 'ACTIVE', now() - interval '1 hour'), ('2', 'ACTIVE', now() - interval '1 hour')`)
	require.NoError(t, err)
	orders := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"status": %q}`, map[string]string{"/1": "CANCELLED", "/2": "OPEN"}[r.URL.Path])
	}))
	defer orders.Close()
	c := settings(db)
	c.Dependencies = map[string]resilience.Settings{"orders": {}}
	c.Reconcile.Rules = []config.ReconcileRule{{
		Name: "holds", Table: db.Schema + ".holds", Key: "id", Status: "status", Suspects: []string{"ACTIVE"}, Clock: "since", Age: time.Minute,
		Authority: config.Authority{HTTP: &config.HTTPAuthority{URL: orders.URL + "/{key}", Dependency: "orders"}}, Keep: []string{"OPEN"},
		Answers: map[string]config.ReconcileAction{"CANCELLED": {NewStatus: "RELEASED", Reason: "CANCELLED", EventType: "hold.released"}},
	}}
	roles := slices.DeleteFunc(app.Roles(), func(r app.Role) bool { return r.Name != "reconcile" })
	require.Len(t, roles, 1)
	p := start(t, c, roles...)
	testkit.Eventually(t, patience, "the role to be ready", func() bool { return p.get(t, "/readyz").code == http.StatusOK })
	metrics := p.get(t, "/metrics").body
	for _, want := range []string{
		`surefoot_reconcile_mismatches_total{answer="CANCELLED",rule="holds"} 1`, `surefoot_reconcile_interval_seconds{rule="holds"} 3600`,
		`surefoot_reconcile_last_success_timestamp_seconds{rule="holds"} 1.`, `surefoot_calls_total{dependency="orders",result="done"} 2`,
		`circuit_breaker_state{dependency="orders"} 0`,
	} {
		require.Contains(t, metrics, want)
	}
	testkit.Eventually(t, patience, "the circuit to be written down", func() bool {
		var n int
		return db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM `+db.Schema+`.circuits WHERE dependency = 'orders'`).Scan(&n) == nil && n > 0
	})
	require.NoError(t, p.end(t))
}
