-- +goose Up

-- Rows of users' tables that the watchdog could not change. While next_try lies ahead the claim leaves the row
-- out, so that rows that fail never starve the others.
CREATE TABLE @schema@.watchdog_failures (
    rule            text        NOT NULL CHECK (octet_length(rule) BETWEEN 1 AND 100),
    -- sha256 of the whole key: a key may be longer than what an index can hold.
    key_hash        bytea       NOT NULL,
    -- The row's clock. A row that got stuck again later is another case and starts afresh.
    since           timestamptz NOT NULL,
    -- For people, cut to 255 bytes.
    key             text        NOT NULL CHECK (octet_length(key) <= 255),
    tries           integer     NOT NULL CHECK (tries > 0),
    error           text        NOT NULL CHECK (octet_length(error) <= 1024),
    first_failed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_failed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_try        timestamptz NOT NULL,
    PRIMARY KEY (rule, key_hash)
);
CREATE INDEX watchdog_failures_next_try ON @schema@.watchdog_failures (next_try);
