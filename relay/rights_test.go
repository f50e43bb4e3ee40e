package relay_test

import (
	"context"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/pg"
	"github.com/surefoot-mq/surefoot/internal/testkit"
	"github.com/surefoot-mq/surefoot/relay"
	"github.com/surefoot-mq/surefoot/resilience"
)

// Found out at once: rows that are published and cannot be settled would be published again at each start.
func TestARoleWithoutRightsRefusesToStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.topology()
	guest := testkit.Name("guest")
	w.exec("CREATE ROLE " + guest + " LOGIN PASSWORD 'x'")
	t.Cleanup(func() {
		_, err := w.db.Pool.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+guest+"; DROP ROLE "+guest)
		require.NoError(t, err)
	})
	u, err := url.Parse(w.db.Direct)
	require.NoError(t, err)
	u.User = url.UserPassword(guest, "x")
	o := w.options()
	o.Pool, err = pg.Open(t.Context(), pg.Options{URL: u.String(), Name: "guest", MaxConns: 8})
	require.NoError(t, err)
	defer o.Pool.Close()
	run := func() error { return newRelay(t, o).Run(t.Context()) }

	w.exec("GRANT USAGE ON SCHEMA " + w.db.Schema + " TO " + guest)
	var lacking *relay.RightsError
	require.ErrorAs(t, run(), &lacking)
	require.Equal(t, "42501", resilience.SQLStateOf(lacking))
	require.Contains(t, lacking.Grants, "GRANT SELECT, DELETE ON TABLE "+w.db.Schema+".outbox TO "+guest+";")
	for _, grant := range lacking.Grants[1:] {
		w.exec(grant)
	}
	one := lacking.Grants[0]
	require.ErrorAs(t, run(), &lacking)
	require.Equal(t, []string{one}, lacking.Grants)
	w.exec(one)

	// What it asks for is all that it needs.
	var v voice
	v.listen(t, &o)
	stop := w.start(o)
	w.poison("bad", "poison")
	w.enqueue(msg("k", 1), msg("bad", 2), lost("", "typo"))
	w.awaitStopped()
	w.wait("a dead row", func() bool { return w.dead() == 1 })
	require.Equal(t, "done", w.request("discard", "poison"))
	w.exec("DELETE FROM " + w.db.Schema + ".outbox WHERE message_id = 'typo'")
	w.settled(2)
	stop()
	require.Zero(t, v.logged("permission denied"), v.log.String())
	require.NotContains(t, v.log.String(), "42501")
}
