-- +goose Up

-- Who publishes which shard. The row of a shard is never deleted. Taking a shard raises its epoch; renewing
-- and settling name it, so a former owner changes nothing. Judged by the database's clock alone: a lease has
-- run out when expires_at has passed, and also when it lies further ahead than one ttl, after a clock was
-- set back.
CREATE TABLE @schema@.outbox_leases (
    shard      smallint    PRIMARY KEY,
    epoch      bigint      NOT NULL DEFAULT 0,
    -- outbox_members.id; NULL: released.
    owner      uuid,
    ttl        interval    NOT NULL DEFAULT '10 s',
    expires_at timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0);
INSERT INTO @schema@.outbox_leases (shard) SELECT generate_series(0, @schema@.outbox_shards() - 1);

-- The relays that are running, by heartbeat. They share the shards evenly.
CREATE TABLE @schema@.outbox_members (
    id         uuid        PRIMARY KEY,
    -- Host and process, for people.
    name       text        NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    ttl        interval    NOT NULL,
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0);

-- Rows that could not be published. Under "strict" the later rows of their keys wait in the outbox. A row is either here or
-- in the outbox: one transaction moves it. Only the owner of its shard changes it; what an operator wants done
-- goes through outbox_requests.
--   retry    bad so far; tried again at next_at
--   dead     all attempts are used up; stays until an operator retries or discards it
CREATE TABLE @schema@.outbox_parked (
    LIKE @schema@.outbox INCLUDING CONSTRAINTS INCLUDING STORAGE,
    state           text        NOT NULL CHECK (state IN ('retry', 'dead')),
    -- Failed attempts since the row was written or last retried by an operator.
    attempts        integer     NOT NULL CHECK (attempts >= 0),
    -- Why, as one of a few words (refused, channel_closed, unroutable) and as a text of at
    -- most 1 KiB. Never holds a payload.
    reason          text        NOT NULL,
    error           text        NOT NULL CHECK (octet_length(error) <= 1024),
    parked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_failed_at  timestamptz,
    -- When it is tried again; NULL unless state is retry.
    next_at         timestamptz,
    PRIMARY KEY (shard, id)
);
CREATE INDEX outbox_parked_key ON @schema@.outbox_parked (shard, hash, id);
CREATE INDEX outbox_parked_message_id ON @schema@.outbox_parked (message_id);

-- What operators ask for. Insert a row (shard, row_id of outbox_parked, message_id, action, who, reason,
-- operation), NOTIFY nothing, and wait for state to leave 'pending': the owner of the shard looks about once a
-- second, carries the request out, writes the audit entry with this operation in the same transaction, and sets
-- state, outcome and finished_at. Without a running relay it waits.
--   retry    attempts 0, tried at once, and the later rows of its key follow when it passes
--   discard  deleted for good; the later rows of its key follow
-- 'refused' means that nothing was done, outcome says why (for example: not parked any more).
CREATE TABLE @schema@.outbox_requests (
    id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation    uuid        NOT NULL,
    shard        smallint    NOT NULL,
    row_id       bigint      NOT NULL,
    message_id   text        NOT NULL,
    action       text        NOT NULL CHECK (action IN ('retry', 'discard')),
    who          text        NOT NULL CHECK (who <> ''),
    -- Required to discard.
    reason       text        NOT NULL CHECK (action <> 'discard' OR reason <> ''),
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    state        text        NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'done', 'refused')),
    outcome      text        NOT NULL DEFAULT '',
    finished_at  timestamptz
);
CREATE INDEX outbox_requests_pending ON @schema@.outbox_requests (shard, id) WHERE state = 'pending';
CREATE INDEX outbox_requests_finished_at ON @schema@.outbox_requests (finished_at) WHERE state <> 'pending';
