-- +goose Up

-- What each process last knew of its circuit breakers, for diagnosis: written on a transition, and slowly otherwise. Nothing
-- decides by it: breakers live in memory. Rows of processes that are gone are removed by the others after their retention.
CREATE TABLE @schema@.circuits (
    host        text        NOT NULL CHECK (octet_length(host) <= 255),
    dependency  text        NOT NULL CHECK (octet_length(dependency) BETWEEN 1 AND 64),
    -- Of breakers that are kept per instance; '' is the one of the whole dependency.
    instance    text        NOT NULL CHECK (octet_length(instance) <= 255),
    state       text        NOT NULL CHECK (state IN ('closed', 'half-open', 'open')),
    -- When it came into this state, and the error that brought it there; NULL: it has never changed.
    since       timestamptz,
    reason      text        CHECK (octet_length(reason) <= 1024),
    -- Until when no call is let through; NULL when not open.
    open_until  timestamptz,
    failures    integer     NOT NULL CHECK (failures >= 0),
    active      integer     NOT NULL CHECK (active >= 0),
    queued      integer     NOT NULL CHECK (queued >= 0),
    -- The limits by which it decides, as in the configuration.
    settings    jsonb       NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (host, dependency, instance)
);
CREATE INDEX circuits_updated_at ON @schema@.circuits (updated_at);
