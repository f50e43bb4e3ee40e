-- +goose Up

-- A letter of a run changes its state several times. With the state in the predicate of an index each change wrote into every index; now
-- only the two that concern these columns are: choosing it for a wave, and what keeps later messages of its key back.
DROP INDEX @schema@.dlq_run_letters_pending;
DROP INDEX @schema@.dlq_run_letters_unmoved;
DROP INDEX @schema@.dlq_run_letters_key;
ALTER TABLE @schema@.dlq_run_letters
    DROP CONSTRAINT dlq_run_letters_pkey,
    ADD PRIMARY KEY (key, run),
    ADD COLUMN pending boolean GENERATED ALWAYS AS (state = 'pending') STORED,
    ADD COLUMN broken boolean GENERATED ALWAYS AS (state IN ('failed', 'left', 'missing')) STORED,
    SET (fillfactor = 60); -- room for the next version of a row beside it
CREATE INDEX dlq_run_letters_pending ON @schema@.dlq_run_letters (run, seq) WHERE pending;
CREATE INDEX dlq_run_letters_broken ON @schema@.dlq_run_letters (run) WHERE broken;
