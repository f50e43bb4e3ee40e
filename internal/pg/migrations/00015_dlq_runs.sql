-- +goose Up

-- Redrives as durable runs: what was chosen is written down before anything moves, and who dies in the middle is followed by
-- another. The id is also that of the operation in the audit, and in the messages' sf-redrive-run.
CREATE TABLE @schema@.dlq_runs (
    id                uuid        PRIMARY KEY,
    vhost             text        NOT NULL,
    queue             text        NOT NULL,
    -- planned: nothing moves yet. stopped: too many came back.
    state             text        NOT NULL CHECK (state IN ('planned', 'running', 'paused', 'stopped', 'done', 'cancelled')),
    created_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    who               text        NOT NULL CHECK (who <> ''),
    reason            text        NOT NULL,
    filter            json        NOT NULL,
    rate              float8      NOT NULL,
    -- Sizes of the first waves, each of which must have settled before the next.
    ramp              integer[]   NOT NULL,
    settle            interval    NOT NULL,
    -- NULL: no limit.
    max_failures      integer,
    -- Letters in the dead-letter queue when it was planned, and those of them that did not match.
    found             integer     NOT NULL DEFAULT 0,
    not_matching      integer     NOT NULL DEFAULT 0,
    wave              integer     NOT NULL DEFAULT 0,
    started_at        timestamptz,
    ended_at          timestamptz,
    note              text        NOT NULL DEFAULT '',
    -- Who drives it now. A lease, for the same reason as dlq_lock.
    owner             text        NOT NULL DEFAULT '',
    token             uuid,
    lease_until       timestamptz
);
CREATE INDEX dlq_runs_queue ON @schema@.dlq_runs (vhost, queue, created_at);

CREATE TABLE @schema@.dlq_run_letters (
    run         uuid        NOT NULL,
    -- In the order of the queue.
    seq         integer     NOT NULL,
    key         uuid        NOT NULL,
    message_id  text        NOT NULL,
    type        text        NOT NULL,
    class       text        NOT NULL,
    fingerprint text        NOT NULL,
    -- Hash of the ordering key; NULL: none.
    order_key   uuid,
    copies      integer     NOT NULL,
    -- What died later than this is not what was chosen. NULL: not known.
    died_at     timestamptz,
    -- ineligible, pending, moving, moved, processed, failed (dead again), missing, left.
    state       text        NOT NULL,
    wave        integer     NOT NULL DEFAULT 0,
    reason      text        NOT NULL DEFAULT '',
    -- Dead again for the same cause.
    same        boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (run, key)
);
CREATE INDEX dlq_run_letters_pending ON @schema@.dlq_run_letters (run, seq) WHERE state = 'pending';
CREATE INDEX dlq_run_letters_unmoved ON @schema@.dlq_run_letters (run) WHERE state IN ('failed', 'left', 'missing');
CREATE INDEX dlq_run_letters_wave ON @schema@.dlq_run_letters (run, wave);
CREATE INDEX dlq_run_letters_key ON @schema@.dlq_run_letters (key);
