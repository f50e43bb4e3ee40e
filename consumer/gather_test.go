package consumer

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"
)

// Two replicas that record the same messages wait for each other in one direction only.
func TestKeysThatShareAStatementAreInTheOrderOfIDs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var statements []pgtype.FlatArray[pgtype.UUID]
		g := newGather(1, func(_ context.Context, keys pgtype.FlatArray[pgtype.UUID]) (map[uuid.UUID]bool, error) {
			statements = append(statements, keys)
			<-release
			known := map[uuid.UUID]bool{}
			for _, key := range keys {
				known[key.Bytes] = key.Bytes[15]%2 == 0
			}
			return known, nil
		})
		for range 21 { // the first asks alone, and the others gather behind it
			key := uuid.New()
			go func() {
				known, err := g.do(t.Context(), key)
				if err != nil || known != (key[15]%2 == 0) {
					t.Errorf("the answer for %s is another's: %t, %v", key, known, err)
				}
			}()
			synctest.Wait()
		}
		close(release)
		synctest.Wait()
		require.Len(t, statements, 2)
		require.Len(t, statements[1], 20)
		require.True(t, slices.IsSortedFunc(statements[1], func(a, b pgtype.UUID) int { return bytes.Compare(a.Bytes[:], b.Bytes[:]) }))
	})
}
