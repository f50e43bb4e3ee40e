-- +goose Up

-- One operator at a time per dead-letter queue: two looks that overlap would reorder it for good. A row with
-- an expiry instead of an advisory lock, because a session's lock does not hold behind a pooler in
-- transaction mode. Whoever holds it renews it; a holder that died is passed over once it has expired.
CREATE TABLE @schema@.dlq_lock (
    -- vhost and queue: one database may serve several vhosts.
    queue      text        PRIMARY KEY,
    token      uuid        NOT NULL,
    holder     text        NOT NULL,
    action     text        NOT NULL,
    since      timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
