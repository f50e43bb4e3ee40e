-- +goose Up

-- What was discarded, or replaced by an edited message, whole: it can be put back for a while.
CREATE TABLE @schema@.dlq_archive (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation   uuid        NOT NULL,
    vhost       text        NOT NULL,
    queue       text        NOT NULL,
    key         uuid        NOT NULL,
    message_id  text        NOT NULL,
    type        text        NOT NULL,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    who         text        NOT NULL,
    reason      text        NOT NULL,
    -- Properties and headers with their types, as JSON; bytea, for they may hold what text cannot.
    envelope    bytea       NOT NULL,
    body        bytea       NOT NULL,
    restored_at timestamptz
);
CREATE INDEX dlq_archive_operation ON @schema@.dlq_archive (operation);
CREATE INDEX dlq_archive_message ON @schema@.dlq_archive (vhost, queue, message_id);
CREATE INDEX dlq_archive_at ON @schema@.dlq_archive (at);

-- From where somebody acted: the program and its host. Empty for what was written before, or by a part that does not say.
ALTER TABLE @schema@.audit ADD COLUMN origin text NOT NULL DEFAULT '';
