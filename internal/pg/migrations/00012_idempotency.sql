-- +goose Up

-- One row per caller and Idempotency-Key of an HTTP request, in the transaction of the request's effects. The primary key,
-- the head of the SHA-256 of caller and key, makes a second request wait for the first; request is the SHA-256 of what was
-- asked, to tell another request under the same key. The answer is there once that transaction commits. pending: the answer
-- says that the outcome is not known yet; such a row stays until it is.
CREATE TABLE @schema@.idempotency (
    id         uuid        NOT NULL PRIMARY KEY,
    request    bytea       NOT NULL CHECK (octet_length(request) = 32),
    caller     text        NOT NULL CHECK (caller <> '' AND octet_length(caller) <= 255),
    key        text        NOT NULL CHECK (key <> '' AND octet_length(key) <= 255),
    pending    boolean     NOT NULL DEFAULT false,
    status     smallint    CHECK (status BETWEEN 200 AND 599),
    headers    text,
    body       bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02); -- room for the answer beside the row that claims the key
CREATE INDEX idempotency_age ON @schema@.idempotency (expires_at);
CREATE INDEX idempotency_pending ON @schema@.idempotency (created_at) WHERE pending;
