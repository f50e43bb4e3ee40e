-- +goose Up

-- Whether a program that knows the schema up to p_program works with it as it is now: replicas of the version before go on while a new
-- one is rolled out, and can start again. A later migration that they do not mind replaces this function, with its own version behind the
-- equals sign; one that they do mind raises the first number, too. One that forgets to is refused by every older program.
-- +goose StatementBegin
CREATE FUNCTION @schema@.schema_fits(p_program bigint) RETURNS boolean LANGUAGE sql STABLE AS
$$
    SELECT p_program >= 22 AND coalesce((SELECT max(version_id) = 22 FROM @schema@.schema_version), false)
$$;
-- +goose StatementEnd
