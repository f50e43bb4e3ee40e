-- +goose Up

-- The routes that the relay has stopped, as the owner of each shard last told: no queue is bound, the broker refuses or
-- does not confirm in time, or the exchange is missing. Their rows wait in the outbox; one at a time is tried. For people
-- and commands: the relay never reads it. Bounded: an owner tells of at most 500. A shard without an owner keeps what its
-- last one told.
CREATE TABLE @schema@.outbox_stopped (
    shard          smallint    NOT NULL,
    exchange       text        NOT NULL,
    -- Empty when whole_exchange.
    routing_key    text        NOT NULL,
    -- The exchange itself is missing or forbidden: everything sent to it waits.
    whole_exchange boolean     NOT NULL,
    -- Rows that name no exchange go to this one.
    is_default     boolean     NOT NULL,
    since          timestamptz NOT NULL,
    error          text        NOT NULL CHECK (octet_length(error) <= 1024),
    PRIMARY KEY (shard, exchange, routing_key, whole_exchange)
);

COMMENT ON TABLE @schema@.outbox_requests IS
    'row_id is that of a row in outbox_parked or, to discard it, of one in outbox that waits for a stopped route.';
