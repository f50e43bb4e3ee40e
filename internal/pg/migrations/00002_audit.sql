-- +goose Up

-- What operators did: one row per operation and one per message that it touched, tied by the operation's id.
CREATE TABLE @schema@.audit (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation  uuid        NOT NULL,
    at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    who        text        NOT NULL CHECK (who <> ''),
    action     text        NOT NULL CHECK (action <> ''),
    target     text        NOT NULL,
    reason     text        NOT NULL,
    -- Empty in the row that stands for the whole operation.
    message_id text        NOT NULL,
    outcome    text        NOT NULL,
    detail     jsonb
);
CREATE INDEX audit_operation ON @schema@.audit (operation);
CREATE INDEX audit_message_id ON @schema@.audit (message_id) WHERE message_id <> '';
CREATE INDEX audit_at ON @schema@.audit USING brin (at);

-- Append-only: an entry can age out, but never change.
-- +goose StatementBegin
CREATE FUNCTION @schema@.audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS
$$
BEGIN
    RAISE EXCEPTION 'the audit is append-only' USING ERRCODE = '42501';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER audit_is_not_truncated BEFORE TRUNCATE ON @schema@.audit
    FOR EACH STATEMENT EXECUTE FUNCTION @schema@.audit_is_append_only();
CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON @schema@.audit
    FOR EACH ROW EXECUTE FUNCTION @schema@.audit_is_append_only();
