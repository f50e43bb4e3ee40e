-- +goose Up

-- The mean size of a planned run's letters in bytes, so that whoever drives the run need not look for it: that would receive all of a queue
-- which was looked at before. 0: not known.
ALTER TABLE @schema@.dlq_runs ADD COLUMN letter_size integer NOT NULL DEFAULT 0;

-- An older program does not mind.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION @schema@.schema_fits(p_program bigint) RETURNS boolean LANGUAGE sql STABLE AS
$$
    SELECT p_program >= 22 AND coalesce((SELECT max(version_id) = 23 FROM @schema@.schema_version), false)
$$;
-- +goose StatementEnd
