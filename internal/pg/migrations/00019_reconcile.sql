-- +goose Up

-- One row for each cycle of a rule of the reconciliation, by one process.
CREATE TABLE @schema@.reconcile_runs (
    id           uuid        PRIMARY KEY,
    rule         text        NOT NULL CHECK (octet_length(rule) BETWEEN 1 AND 64),
    host         text        NOT NULL CHECK (octet_length(host) <= 255),
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- NULL: it is under way, or its process has died.
    ended_at     timestamptz,
    checked      integer     NOT NULL DEFAULT 0,
    mismatches   integer     NOT NULL DEFAULT 0,
    kept         integer     NOT NULL DEFAULT 0,
    unanswered   integer     NOT NULL DEFAULT 0,
    lost         integer     NOT NULL DEFAULT 0,
    failed       integer     NOT NULL DEFAULT 0,
    -- Why it broke off; NULL: it did not.
    error        text        CHECK (octet_length(error) <= 1024)
);
CREATE INDEX reconcile_runs_rule ON @schema@.reconcile_runs (rule, started_at);
CREATE INDEX reconcile_runs_started_at ON @schema@.reconcile_runs (started_at);

-- A run is what its events and log lines name: what it was does not change, and what has ended is over.
-- +goose StatementBegin
CREATE FUNCTION @schema@.reconcile_run_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.ended_at IS NOT NULL OR (NEW.id, NEW.rule, NEW.host, NEW.started_at) IS DISTINCT FROM (OLD.id, OLD.rule, OLD.host, OLD.started_at) THEN
        RAISE EXCEPTION 'a run of the reconciliation is immutable';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER reconcile_run_is_immutable BEFORE UPDATE ON @schema@.reconcile_runs
    FOR EACH ROW EXECUTE FUNCTION @schema@.reconcile_run_is_immutable();

-- Suspects that were claimed: who asks about them now or when they are asked about next, and what was answered last.
CREATE TABLE @schema@.reconcile_suspects (
    rule        text        NOT NULL CHECK (octet_length(rule) BETWEEN 1 AND 64),
    -- sha256 of the whole key: a key may be longer than what an index can hold.
    key_hash    bytea       NOT NULL,
    -- For people, cut to 255 bytes.
    key         text        NOT NULL CHECK (octet_length(key) <= 255),
    -- The row's clock. A row that is suspect again later is another case and starts afresh.
    since       timestamptz NOT NULL,
    -- The last run that claimed it.
    run_id      uuid        NOT NULL,
    -- Until then the run alone may act on it; after that anybody may claim it.
    next_check  timestamptz NOT NULL,
    checks      integer     NOT NULL DEFAULT 0,
    -- Checks in a row without an answer, or whose action failed.
    misses      integer     NOT NULL DEFAULT 0,
    checked_at  timestamptz,
    answer      text        CHECK (octet_length(answer) <= 255),
    error       text        CHECK (octet_length(error) <= 1024),
    -- Set by the transaction that changed the row and wrote the event.
    resolved_at timestamptz,
    new_status  text        CHECK (octet_length(new_status) <= 255),
    event_id    uuid,
    PRIMARY KEY (rule, key_hash)
);
CREATE INDEX reconcile_suspects_next_check ON @schema@.reconcile_suspects (next_check);
CREATE INDEX reconcile_suspects_resolved_at ON @schema@.reconcile_suspects (resolved_at) WHERE resolved_at IS NOT NULL;
