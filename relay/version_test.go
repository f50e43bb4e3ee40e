package relay_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// Before `migrate up`, and after that of a later version, nothing is published and nothing changed; then it works.
func TestARelayRefusesASchemaOfAnotherVersion(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, testkit.DatabaseBehind(t, 1), testkit.Broker(t))
	w.topology()
	w.enqueue(msg("k", 1), msg("k", 2))
	refuses := func(why string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		require.ErrorContains(t, newRelay(t, w.options()).Run(ctx), why)
		require.Equal(t, []int{0, 2}, []int{w.count("outbox_members"), w.count("outbox")})
	}
	refuses("run `surefoot migrate up`")
	_, err := pg.Migrate(t.Context(), pg.MigrateOptions{URL: w.db.URL, Schema: w.db.Schema})
	require.NoError(t, err)
	w.exec("INSERT INTO " + w.db.Schema + ".schema_version (version_id, is_applied) VALUES (999, true)")
	refuses("use a newer surefoot")
	require.Empty(t, w.ids())
	w.exec("DELETE FROM " + w.db.Schema + ".schema_version WHERE version_id = 999")
	w.start(w.options())
	w.settled(2)
	w.inOrder()
	// Migrations only add: who runs already goes on until it is replaced.
	w.exec("INSERT INTO " + w.db.Schema + ".schema_version (version_id, is_applied) VALUES (999, true)")
	w.enqueue(msg("k", 3))
	w.settled(3)
}
