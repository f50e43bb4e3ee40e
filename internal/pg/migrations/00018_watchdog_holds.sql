-- +goose Up

-- Rows that an operator keeps from the watchdog, each for one stay in its status: until says for how long, and is infinity for one that
-- is skipped. The user's table is not touched.
CREATE TABLE @schema@.watchdog_holds (
    rule     text        NOT NULL CHECK (octet_length(rule) BETWEEN 1 AND 100),
    -- sha256 of the whole key: a key may be longer than what an index can hold.
    key_hash bytea       NOT NULL,
    -- The row's clock. A row that got stuck again later is another case, and held by nobody.
    since    timestamptz NOT NULL,
    -- For people, cut to 255 bytes.
    key      text        NOT NULL CHECK (octet_length(key) <= 255),
    until    timestamptz NOT NULL,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    who      text        NOT NULL CHECK (who <> ''),
    reason   text        NOT NULL,
    PRIMARY KEY (rule, key_hash)
);
CREATE INDEX watchdog_holds_until ON @schema@.watchdog_holds (until);
CREATE INDEX watchdog_holds_at ON @schema@.watchdog_holds (at);

-- One message's history looks for what was archived of it in any queue.
CREATE INDEX dlq_archive_id ON @schema@.dlq_archive (message_id);
