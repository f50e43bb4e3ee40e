package relay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

func TestALookIsWorthAReadOnlyWhenSomethingCanHaveCome(t *testing.T) {
	t.Parallel()
	r := &reader{pollMin: 2 * time.Millisecond, last: 7, pending: map[int16]ask{0: {snapshot: "9:9:"}, 1: {snapshot: "9:9:"}}}
	const soon, late = time.Millisecond, 2 * time.Millisecond
	for name, c := range map[string]struct {
		last     int64
		snapshot string
		ago      time.Duration
		want     bool
	}{
		"nothing happened":                                                   {7, "9:9:", soon, false},
		"nothing happened for a while":                                       {7, "9:9:", late, false},
		"an id was taken, no transaction has ended":                          {8, "9:9:", soon, false},
		"another transaction has ended":                                      {7, "9:10:", soon, false},
		"another transaction has ended a while ago, or it had its id before": {7, "9:10:", late, true},
		"a row may be there":                                                 {8, "9:10:", soon, true},
	} {
		require.Equal(t, c.want, r.worth(c.last, c.snapshot, c.ago), name)
	}
	r.pending[1] = ask{snapshot: "8:8:"} // took no part in the last read
	require.True(t, r.worth(7, "9:9:", late))
}

func TestRowsThatComeOneByOneAreLookedFor(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	o := Options{Pool: db.Pool, Schema: db.Schema, PollMin: time.Hour, PollMax: 2 * time.Hour}
	r := newReader(o, nil)
	read := func() {
		reply := make(chan answer, 1)
		r.pending[0] = ask{snapshot: "1:1:", n: 100, bytes: 1 << 20, reply: reply}
		r.readAll(t.Context())
		a := <-reply
		require.NoError(t, a.err)
		r.pending[0] = ask{snapshot: a.page.snapshot, cursor: a.page.last, n: 100, bytes: 1 << 20, reply: reply}
	}
	rows := func(n int) {
		_, err := db.Pool.Exec(t.Context(), `DELETE FROM `+db.Schema+`.outbox`)
		require.NoError(t, err)
		fill(t, db, n)
		_, err = db.Pool.Exec(t.Context(), `UPDATE `+db.Schema+`.outbox SET shard = 0`)
		require.NoError(t, err)
	}
	rarely := func() {
		r.came = time.Now().Add(-3 * time.Hour)
		rows(1)
		read()
	}
	rarely()
	require.False(t, r.looks(), "one row says little")
	require.Equal(t, o.PollMin, r.untilLook())
	for range 2 * gapMemory {
		rarely()
	}
	require.True(t, r.looks())
	require.Less(t, r.untilLook(), o.PollMin)
	require.False(t, r.due(t.Context()), "nothing was enqueued")
	rows(1)
	require.True(t, r.due(t.Context()), "a row was enqueued")

	r.came = time.Now()
	rows(gapMemory)
	read()
	require.False(t, r.looks(), "rows that come fast share a read")
}
