package consumer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// Before `migrate up`, and after that of a later version, a consumer takes nothing and says why; it goes on by itself.
func TestAConsumerWaitsForASchemaOfItsVersion(t *testing.T) {
	t.Parallel()
	w := newWorldOn(t, worldOptions{}, testkit.DatabaseBehind(t, 1), testkit.Broker(t))
	exec := func(statement string) {
		t.Helper()
		_, err := w.db.Pool.Exec(t.Context(), statement)
		require.NoError(t, err)
	}
	o := w.options(nil)
	ready := watchReady(&o)
	w.publish("1", "2")
	w.start(o)
	ready.await(t, "run `surefoot migrate up`")
	exec("INSERT INTO " + w.db.Schema + ".schema_version (version_id, is_applied) VALUES (999, true)")
	_, err := pg.Migrate(t.Context(), pg.MigrateOptions{URL: w.db.URL, Schema: w.db.Schema})
	require.Error(t, err, "a step that was left out, below one that is there")
	ready.await(t, "use a newer surefoot")
	var consumers int
	require.NoError(t, w.db.Pool.QueryRow(t.Context(), "SELECT count(*) FROM "+w.db.Schema+".inbox_consumers").Scan(&consumers))
	require.Equal(t, []int{0, 2}, []int{consumers, w.depth("q")})
	require.Empty(t, w.effects())

	exec("DELETE FROM " + w.db.Schema + ".schema_version WHERE version_id = 999")
	_, err = pg.Migrate(t.Context(), pg.MigrateOptions{URL: w.db.URL, Schema: w.db.Schema})
	require.NoError(t, err)
	w.awaitEffects(2)
	// Migrations only add: who runs already goes on until it is replaced.
	exec("INSERT INTO " + w.db.Schema + ".schema_version (version_id, is_applied) VALUES (999, true)")
	w.publish("3")
	w.awaitEffects(3)
	ready.await(t, "")
}
