-- +goose Up

-- Message ids as fixed 16 bytes, so that the inbox and its index stay small: a canonical UUID is kept as it is
-- (UUIDv7 ids then arrive at the right edge of the index), anything else becomes the head of its SHA-256.
CREATE FUNCTION @schema@.inbox_key(p_message_id text) RETURNS uuid
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS
    $$ SELECT CASE WHEN p_message_id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
           THEN p_message_id::uuid
           ELSE encode(substring(sha256(convert_to(p_message_id, 'UTF8')) FROM 1 FOR 16), 'hex')::uuid END $$;

-- Each consumer's short number and how long its inbox remembers. Kept when a consumer goes, so that its rows age out.
CREATE TABLE @schema@.inbox_consumers (
    id        integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name      text        NOT NULL UNIQUE CHECK (name <> ''),
    queue     text        NOT NULL,
    retention interval    NOT NULL,
    seen_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row per message and consumer, in the transaction of the handler's effects. The primary key is what makes a
-- second delivery wait for the first and then fail. Rows age by the second index, in the order they came.
CREATE TABLE @schema@.inbox (
    consumer   integer     NOT NULL,
    message    uuid        NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message)
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX inbox_age ON @schema@.inbox (consumer, handled_at);

-- Redelivered messages that were started alone. A row that is still here at the next start is a run that never
-- ended: the process died in it. lap tells earlier lives of the message apart (attempts and redrive).
CREATE TABLE @schema@.inbox_suspects (
    consumer integer     NOT NULL,
    message  uuid        NOT NULL,
    lap      text        NOT NULL,
    runs     integer     NOT NULL,
    at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer, message)
);
CREATE INDEX inbox_suspects_at ON @schema@.inbox_suspects (at);

-- Queues that no consumer works on, until somebody resumes them.
CREATE TABLE @schema@.pauses (
    queue  text        NOT NULL PRIMARY KEY CHECK (queue <> ''),
    at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    who    text        NOT NULL CHECK (who <> ''),
    reason text        NOT NULL
);
