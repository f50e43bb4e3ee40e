package relay

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/surefoot-mq/surefoot/internal/testkit"
)

// A renewal and a release name the epoch: what is left of a former run of the same member moves nothing.
func TestARenewalOfAFormerEpochIsFenced(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	l := &leaseStore{pool: db.Pool, schema: db.Schema, ttl: time.Minute, me: uuid.New()}
	_, err := l.take(t.Context(), 1)
	require.NoError(t, err)
	_, err = db.Pool.Exec(t.Context(), `UPDATE `+db.Schema+`.outbox_leases SET expires_at = clock_timestamp() - interval '1 s' WHERE shard = 0`)
	require.NoError(t, err)
	taken, err := l.take(t.Context(), 1)
	require.NoError(t, err)
	require.Equal(t, []lease{{shard: 0, epoch: 2, mine: true}}, taken)

	renewed, err := l.renew(t.Context(), []int16{0}, []int64{1})
	require.NoError(t, err)
	require.Empty(t, renewed, "of the former epoch")
	require.NoError(t, l.release(t.Context(), 0, 1))
	renewed, err = l.renew(t.Context(), []int16{0}, []int64{2})
	require.NoError(t, err)
	require.Equal(t, []int16{0}, renewed, "neither renewed nor released by the former one")
	other := &leaseStore{pool: db.Pool, schema: db.Schema, ttl: time.Minute, me: uuid.New()}
	renewed, err = other.renew(t.Context(), []int16{0}, []int64{2})
	require.NoError(t, err)
	require.Empty(t, renewed, "of another member")
}
