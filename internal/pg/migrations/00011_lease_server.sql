-- +goose Up

-- The start of the server that the lease was taken on. On another one (a promoted standby, a restored backup) it holds no more: there the
-- same id can be another message's row, and what its owner has in memory must neither hide it nor settle it. NULL: taken by a relay that
-- does not tell.
ALTER TABLE @schema@.outbox_leases ADD COLUMN server timestamptz;
