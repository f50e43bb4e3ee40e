-- +goose Up

-- An index of the dead letters, so that they can be grouped, counted and aged without looking into their queues. The
-- queue stays the truth: a row says what was seen, and never decides whether a message exists. Consumers add rows when
-- they dead-letter; a scan brings them into line with the queue.
CREATE TABLE @schema@.dlq_queues (
    id           integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    vhost        text        NOT NULL,
    -- The work queue, without ".dlq".
    queue        text        NOT NULL CHECK (queue <> ''),
    -- The last scan: its number, when it began, when it saw everything, how long it took, and why it did not.
    scan         bigint      NOT NULL DEFAULT 0,
    scan_began   timestamptz,
    scanned_at   timestamptz,
    scan_seconds float8      NOT NULL DEFAULT 0,
    scan_note    text        NOT NULL DEFAULT '',
    UNIQUE (vhost, queue)
);

-- Failures of one cause. The example is that of the first.
CREATE TABLE @schema@.dlq_groups (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue_id      integer     NOT NULL,
    type          text        NOT NULL,
    class         text        NOT NULL,
    fingerprint   text        NOT NULL,
    error_type    text        NOT NULL,
    error_message text        NOT NULL,
    -- Of the handler that failed last.
    version       text        NOT NULL,
    first_seen    timestamptz NOT NULL,
    last_seen     timestamptz NOT NULL,
    note          text        NOT NULL DEFAULT '',
    noted_by      text        NOT NULL DEFAULT '',
    noted_at      timestamptz,
    UNIQUE (queue_id, type, class, fingerprint)
);

-- One row per message and dead-letter queue; several letters of one message are copies. A row whose letters have gone
-- is kept for a while, marked.
CREATE TABLE @schema@.dlq_letters (
    queue_id   integer     NOT NULL,
    -- The inbox's key of the message; of one without an id a hash of its body and what else tells it from others.
    key        uuid        NOT NULL,
    group_id   bigint      NOT NULL,
    message_id text        NOT NULL,
    copies     integer     NOT NULL,
    died_at    timestamptz NOT NULL,
    -- False: the letter does not say when it died, and died_at is when it was seen first.
    dated      boolean     NOT NULL,
    version    text        NOT NULL,
    redrives   integer     NOT NULL,
    redrive_run uuid,
    -- The failure before the last redrive.
    previous_group   bigint,
    previous_died_at timestamptz,
    previous_version text,
    indexed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    scan       bigint      NOT NULL DEFAULT 0,
    gone_at    timestamptz,
    -- redriven, discarded, edited, or vanished: taken by something else.
    gone       text        NOT NULL DEFAULT '',
    PRIMARY KEY (queue_id, key)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX dlq_letters_live ON @schema@.dlq_letters (queue_id, died_at) INCLUDE (copies) WHERE gone_at IS NULL;
CREATE INDEX dlq_letters_run ON @schema@.dlq_letters (redrive_run) WHERE gone_at IS NULL AND redrive_run IS NOT NULL;
CREATE INDEX dlq_letters_gone ON @schema@.dlq_letters (gone_at) WHERE gone_at IS NOT NULL;
CREATE INDEX dlq_letters_group ON @schema@.dlq_letters (group_id);

-- Set by who waits for a scan to let go of the queue.
ALTER TABLE @schema@.dlq_lock ADD COLUMN wanted boolean NOT NULL DEFAULT false;
