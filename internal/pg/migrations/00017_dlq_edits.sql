-- +goose Up

-- Messages that were changed and sent to work again: the new one, the old one (in dlq_archive), and what differs.
CREATE TABLE @schema@.dlq_edits (
    operation uuid        PRIMARY KEY,
    vhost     text        NOT NULL,
    queue     text        NOT NULL,
    old_id    text        NOT NULL,
    new_id    text        NOT NULL,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    who       text        NOT NULL,
    reason    text        NOT NULL,
    -- bytea: JSON that may hold escapes which jsonb cannot.
    diff      bytea       NOT NULL
);
CREATE INDEX dlq_edits_old ON @schema@.dlq_edits (old_id);
CREATE INDEX dlq_edits_new ON @schema@.dlq_edits (new_id);
CREATE INDEX dlq_edits_at ON @schema@.dlq_edits (at);
