-- +goose Up

-- The number of shards is part of the data: each row's shard is computed with it. The relay refuses to
-- start with another number.
CREATE FUNCTION @schema@.outbox_shards() RETURNS integer
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 8';

-- A stable hash of our own: the server's hash functions may change between major versions, and a key
-- must never move to another shard. STABLE, because convert_to is: declared IMMUTABLE, it would not be inlined,
-- and cost ten times as much.
CREATE FUNCTION @schema@.outbox_hash(p_text text) RETURNS bigint
    LANGUAGE sql STABLE STRICT PARALLEL SAFE AS
    $$ SELECT ('x' || left(encode(sha256(convert_to(p_text, 'UTF8')), 'hex'), 16))::bit(64)::bigint $$;

-- UUIDv7: sortable by time. Servers before 18 have none of their own.
CREATE FUNCTION @schema@.new_message_id() RETURNS text
    LANGUAGE sql VOLATILE PARALLEL SAFE AS
    $$ SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
           PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
           52, 1), 53, 1), 'hex')::uuid::text $$;

-- CACHE 1: with a cache, ids of one session would lie apart from the order of the calls.
CREATE SEQUENCE @schema@.outbox_id_seq AS bigint NO CYCLE CACHE 1;

-- 2 while the relay sleeps and wants a NOTIFY, 1 while it polls anyway. A sequence, because its value is
-- read and written outside transactions; and by pg_sequence_last_value, which costs a fifth of a SELECT.
CREATE SEQUENCE @schema@.outbox_doorbell MINVALUE 1 MAXVALUE 2 START 1 NO CYCLE CACHE 1;
SELECT setval('@schema@.outbox_doorbell', 1);

-- A row is here exactly as long as it is not settled. Payload is bytea, never jsonb, which would rewrite it.
CREATE TABLE @schema@.outbox (
    id             bigint      NOT NULL DEFAULT nextval('@schema@.outbox_id_seq'),
    xid            xid8        NOT NULL DEFAULT pg_current_xact_id(),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    occurred_at    timestamptz NOT NULL,
    -- Hash of the key, or of the message id where there is no key; the shard is taken from it.
    hash           bigint      NOT NULL,
    shard          smallint    NOT NULL,
    message_id     text        NOT NULL,
    type           text        NOT NULL,
    key            text        NOT NULL,
    -- Empty: the relay's exchange.
    exchange       text        NOT NULL,
    -- Empty: the type.
    routing_key    text        NOT NULL,
    content_type   text        NOT NULL,
    source         text        NOT NULL,
    correlation_id text        NOT NULL,
    causation_id   text        NOT NULL,
    request_id     text        NOT NULL,
    traceparent    text        NOT NULL,
    tracestate     text        NOT NULL,
    -- json, not jsonb, for the same reason as the payload; NULL: none.
    headers        json,
    payload        bytea       NOT NULL,
    PRIMARY KEY (shard, id),
    CONSTRAINT message_id_has_1_to_255_bytes   CHECK (octet_length(message_id) BETWEEN 1 AND 255),
    CONSTRAINT type_has_1_to_255_bytes         CHECK (octet_length(type) BETWEEN 1 AND 255),
    CONSTRAINT key_has_at_most_255_bytes       CHECK (octet_length(key) <= 255),
    CONSTRAINT exchange_has_at_most_255_bytes  CHECK (octet_length(exchange) <= 255),
    CONSTRAINT routing_key_has_at_most_255_bytes    CHECK (octet_length(routing_key) <= 255),
    CONSTRAINT content_type_has_at_most_255_bytes   CHECK (octet_length(content_type) <= 255),
    CONSTRAINT source_has_at_most_255_bytes         CHECK (octet_length(source) <= 255),
    CONSTRAINT correlation_id_has_at_most_255_bytes CHECK (octet_length(correlation_id) <= 255),
    CONSTRAINT trace_and_cause_have_at_most_512_bytes_each CHECK (
        greatest(octet_length(causation_id), octet_length(request_id),
                 octet_length(traceparent), octet_length(tracestate)) <= 512),
    CONSTRAINT occurred_at_is_between_1970_and_9999 CHECK (
        occurred_at >= timestamptz '1970-01-01 00:00:00+00' AND occurred_at < timestamptz '10000-01-01 00:00:00+00'),
    -- 32 KiB encoded for AMQP, the limit, are at most six times as much as text.
    CONSTRAINT headers_are_an_object_of_at_most_256_kib CHECK (
        headers IS NULL OR (json_typeof(headers) = 'object' AND octet_length(headers::text) <= 262144)),
    CONSTRAINT payload_has_at_most_128_mib CHECK (octet_length(payload) <= 134217728)
);
ALTER SEQUENCE @schema@.outbox_id_seq OWNED BY @schema@.outbox.id;

-- Late rows: those of a transaction that committed after the cursor had passed their ids.
CREATE INDEX outbox_late ON @schema@.outbox (xid, shard, id);

-- A queue is written and emptied for ever: compressing a payload that lives for milliseconds is waste, and
-- vacuum has to keep up with deletes whatever the table's size.
ALTER TABLE @schema@.outbox ALTER COLUMN payload SET STORAGE EXTERNAL;
ALTER TABLE @schema@.outbox SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0.2, toast.autovacuum_vacuum_cost_delay = 0);

-- Ids that were enqueued with "once". A second row of one id is not written while its id is kept here.
CREATE TABLE @schema@.outbox_once (
    message_id  text PRIMARY KEY CHECK (octet_length(message_id) BETWEEN 1 AND 255),
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX outbox_once_enqueued_at ON @schema@.outbox_once USING brin (enqueued_at);

-- What is wrong with headers, or NULL. Only what a glance shows: the names of the first level. The rest (depth,
-- numbers of more than 64 bits) the relay finds, and parks the row.
-- +goose StatementBegin
CREATE FUNCTION @schema@.outbox_headers_fault(p_headers json) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS
$$
DECLARE
    v_name text;
BEGIN
    IF json_typeof(p_headers) <> 'object' THEN
        RETURN 'headers are not a JSON object';
    END IF;
    IF octet_length(p_headers::text) > 262144 THEN
        RETURN 'headers have more than 256 KiB as text; store them elsewhere and send a reference';
    END IF;
    SELECT k INTO v_name FROM json_object_keys(p_headers) AS k
    WHERE octet_length(k) NOT BETWEEN 1 AND 255 OR k IN ('CC', 'BCC')
       OR lower(k) ~ ('^(sf-.*|x-request-id|traceparent|tracestate|x-attempts|x-reprocess|x-death|x-delivery-count'
           '|x-acquired-count|x-delay|x-stream-offset|x-stream-filter|x-stream-filter-value|x-received-from'
           '|x-shovelled|x-shovelled-timestamp|(x-first-death-|x-last-death-|x-opt-|x-mqtt-|x-amqp-1\.0-).*)$')
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN NULL;
    ELSIF octet_length(v_name) NOT BETWEEN 1 AND 255 THEN
        RETURN format('headers contain the name "%s", which is empty or over 255 bytes', left(v_name, 32));
    END IF;
    RETURN format('headers contain "%s", which is written by Surefoot or the broker; use another name', left(v_name, 64));
END
$$;
-- +goose StatementEnd

-- What the broker, or the reader of the row, would choke on, or NULL. It comes before the table's constraints,
-- whose errors would show the failing row with the beginning of its payload. A plain expression, to be inlined.
-- +goose StatementBegin
CREATE FUNCTION @schema@.outbox_fault(
    p_message_id text, p_type text, p_key text, p_exchange text, p_routing_key text, p_content_type text,
    p_occurred_at timestamptz, p_source text, p_correlation_id text, p_causation_id text, p_request_id text,
    p_traceparent text, p_tracestate text, p_headers json, p_payload bytea) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$
SELECT CASE
    WHEN (octet_length(p_message_id) BETWEEN 1 AND 255) IS NOT TRUE     THEN 'message_id must have 1 to 255 bytes'
    WHEN (octet_length(p_type) BETWEEN 1 AND 255) IS NOT TRUE           THEN 'type must have 1 to 255 bytes, for example "order.created"'
    WHEN (octet_length(p_key) <= 255) IS NOT TRUE                       THEN 'key must have at most 255 bytes'
    WHEN (octet_length(p_exchange) <= 255) IS NOT TRUE                  THEN 'exchange must have at most 255 bytes'
    WHEN (octet_length(p_routing_key) <= 255) IS NOT TRUE               THEN 'routing_key must have at most 255 bytes'
    WHEN (octet_length(p_content_type) <= 255) IS NOT TRUE              THEN 'content_type must have at most 255 bytes'
    WHEN (p_occurred_at >= timestamptz '1970-01-01 00:00:00+00'
          AND p_occurred_at < timestamptz '10000-01-01 00:00:00+00') IS NOT TRUE
                                                                        THEN 'occurred_at must lie in the years 1970 to 9999'
    WHEN (octet_length(p_source) <= 255) IS NOT TRUE                    THEN 'source must have at most 255 bytes'
    WHEN (octet_length(p_correlation_id) <= 255) IS NOT TRUE            THEN 'correlation_id must have at most 255 bytes'
    WHEN (octet_length(p_causation_id) <= 512) IS NOT TRUE              THEN 'causation_id must have at most 512 bytes'
    WHEN (octet_length(p_request_id) <= 512) IS NOT TRUE                THEN 'request_id must have at most 512 bytes'
    WHEN (octet_length(p_traceparent) <= 512) IS NOT TRUE               THEN 'traceparent must have at most 512 bytes'
    WHEN (octet_length(p_tracestate) <= 512) IS NOT TRUE                THEN 'tracestate must have at most 512 bytes'
    WHEN (octet_length(p_payload) <= 134217728) IS NOT TRUE             THEN 'payload must have at most 128 MiB; store it elsewhere and send a reference'
    WHEN p_headers IS NOT NULL                                          THEN @schema@.outbox_headers_fault(p_headers)
END
$$;
-- +goose StatementEnd

-- Refuses a call. A function, so that a statement can refuse a row in the middle of its work.
-- +goose StatementBegin
CREATE FUNCTION @schema@.outbox_refuse(p_fault text) RETURNS bigint
    LANGUAGE plpgsql VOLATILE AS
$$
BEGIN
    RAISE EXCEPTION 'enqueue: %', p_fault
        USING ERRCODE = '22023', TABLE = 'outbox', HINT = 'Nothing was written. Mend the call; trying again does not help.';
END
$$;
-- +goose StatementEnd

-- enqueue is, with enqueue_batch, the only way to write the outbox. Call it inside the transaction of the
-- business change:
--   SELECT @schema@.enqueue('order.created', convert_to('{"orderId":"42"}', 'UTF8'), key => '42');
-- It returns the message id, or NULL when once => true found the id enqueued already. NULL in any argument but
-- type and payload stands for its default.
--
-- Both functions run with the rights of their owner. Other roles need, and should have no more than:
--   GRANT USAGE ON SCHEMA @schema@ TO app;
--   GRANT EXECUTE ON FUNCTION @schema@.enqueue, @schema@.enqueue_batch TO app;
-- +goose StatementBegin
CREATE FUNCTION @schema@.enqueue(
    type text, payload bytea, key text DEFAULT '', message_id text DEFAULT NULL, headers json DEFAULT NULL,
    exchange text DEFAULT '', routing_key text DEFAULT '', content_type text DEFAULT 'application/json',
    occurred_at timestamptz DEFAULT NULL, source text DEFAULT '', correlation_id text DEFAULT '',
    causation_id text DEFAULT '', request_id text DEFAULT '', traceparent text DEFAULT '',
    tracestate text DEFAULT '', once boolean DEFAULT false, lock_key boolean DEFAULT false) RETURNS text
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$
#variable_conflict use_variable
DECLARE
    v_id    text := nullif(message_id, '');
    v_hash  bigint;
    v_fault text;
BEGIN
    IF v_id IS NULL THEN
        v_id := @schema@.new_message_id();
    END IF;
    v_hash := @schema@.outbox_hash(CASE WHEN key <> '' THEN key ELSE v_id END);
    -- A glance that most calls pass; what it doubts is looked at closely. Each expression of its own costs the
    -- first call of a transaction two microseconds, hence few and long ones.
    IF (headers IS NULL AND octet_length(type) BETWEEN 1 AND 255 AND octet_length(payload) <= 134217728
        AND (occurred_at BETWEEN timestamptz '1970-01-01 00:00:00+00' AND timestamptz '9999-12-30 00:00:00+00') IS NOT FALSE
        AND greatest(octet_length(v_id), octet_length(key), octet_length(exchange), octet_length(routing_key),
                     octet_length(content_type), octet_length(source), octet_length(correlation_id)) <= 255
        AND greatest(octet_length(causation_id), octet_length(request_id), octet_length(traceparent),
                     octet_length(tracestate), 0) <= 512
        AND once IS NOT TRUE AND lock_key IS NOT TRUE) IS NOT TRUE THEN
        v_fault := @schema@.outbox_fault(v_id, type, coalesce(key, ''), coalesce(exchange, ''), coalesce(routing_key, ''),
            coalesce(content_type, ''), coalesce(occurred_at, clock_timestamp()), coalesce(source, ''),
            coalesce(correlation_id, ''), coalesce(causation_id, ''), coalesce(request_id, ''), coalesce(traceparent, ''),
            coalesce(tracestate, ''), headers, payload);
        IF v_fault IS NULL AND once AND coalesce(message_id, '') = '' THEN
            v_fault := 'once needs a message_id of your own, for example a UUIDv5 of a business key';
        END IF;
        IF v_fault IS NOT NULL THEN
            PERFORM @schema@.outbox_refuse(v_fault);
        END IF;
        IF once THEN
            INSERT INTO @schema@.outbox_once AS o (message_id) VALUES (v_id) ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                RETURN NULL;
            END IF;
        END IF;
        IF lock_key AND key <> '' THEN
            PERFORM pg_advisory_xact_lock('@schema@.outbox'::regclass::oid::bigint::bit(32)::integer, (v_hash & 1023)::integer);
        END IF;
    END IF;
    INSERT INTO @schema@.outbox (occurred_at, hash, shard, message_id, type, key, exchange, routing_key, content_type,
                                 source, correlation_id, causation_id, request_id, traceparent, tracestate, headers, payload)
    VALUES (coalesce(occurred_at, clock_timestamp()), v_hash, (v_hash & 9223372036854775807) % @schema@.outbox_shards(),
            v_id, type, coalesce(key, ''), coalesce(exchange, ''), coalesce(routing_key, ''),
            coalesce(nullif(content_type, ''), 'application/json'), coalesce(source, ''), coalesce(correlation_id, ''),
            coalesce(causation_id, ''), coalesce(request_id, ''), coalesce(traceparent, ''), coalesce(tracestate, ''),
            headers, payload);
    IF pg_sequence_last_value('@schema@.outbox_doorbell') = 2 THEN
        PERFORM pg_notify('@schema@_outbox', '');
    END IF;
    RETURN v_id;
END
$$;
-- +goose StatementEnd

-- enqueue_batch writes many rows in one round trip, in the order of the arrays, which must have one length.
-- Only elements of p_headers may be NULL. It returns the number of rows written; with p_once, ids that were
-- enqueued before, or stand earlier in the same call, are left out.
-- Ids of p_once and locks are taken in order and before any row's id is drawn, so that calls cannot deadlock on
-- them and a key's ids follow the order of its lock. Several calls in one transaction still can.
-- +goose StatementBegin
CREATE FUNCTION @schema@.enqueue_batch(
    p_message_ids text[], p_types text[], p_keys text[], p_exchanges text[], p_routing_keys text[],
    p_content_types text[], p_occurred_at timestamptz[], p_sources text[], p_correlation_ids text[],
    p_causation_ids text[], p_request_ids text[], p_traceparents text[], p_tracestates text[],
    p_headers text[], p_payloads bytea[], p_once boolean DEFAULT false, p_lock_keys boolean DEFAULT false) RETURNS bigint
    LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS
$$
DECLARE
    -- Which elements p_once lets through, by position; NULL: all.
    v_fresh   boolean[];
    v_written bigint;
BEGIN
    IF (cardinality(p_message_ids) = ALL (ARRAY[
            cardinality(p_types), cardinality(p_keys), cardinality(p_exchanges), cardinality(p_routing_keys),
            cardinality(p_content_types), cardinality(p_occurred_at), cardinality(p_sources), cardinality(p_correlation_ids),
            cardinality(p_causation_ids), cardinality(p_request_ids), cardinality(p_traceparents), cardinality(p_tracestates),
            cardinality(p_headers), cardinality(p_payloads)])) IS NOT TRUE THEN
        PERFORM @schema@.outbox_refuse('all arrays must be there and have the same length');
    END IF;
    IF p_once THEN
        PERFORM @schema@.outbox_refuse(format('message %s: message_id must have 1 to 255 bytes', n))
        FROM unnest(p_message_ids) WITH ORDINALITY AS u(i, n) WHERE (octet_length(i) BETWEEN 1 AND 255) IS NOT TRUE;
        WITH inserted AS (
            INSERT INTO @schema@.outbox_once (message_id)
            SELECT DISTINCT i FROM unnest(p_message_ids) AS i ORDER BY i
            ON CONFLICT DO NOTHING RETURNING message_id)
        SELECT array_agg(f.message_id IS NOT NULL AND f.nth = 1 ORDER BY f.n) INTO v_fresh
        FROM (SELECT n, inserted.message_id, row_number() OVER (PARTITION BY i ORDER BY n) AS nth
              FROM unnest(p_message_ids) WITH ORDINALITY AS u(i, n) LEFT JOIN inserted ON inserted.message_id = i) AS f;
    END IF;
    IF p_lock_keys THEN
        PERFORM pg_advisory_xact_lock('@schema@.outbox'::regclass::oid::bigint::bit(32)::integer, b.bucket)
        FROM (SELECT DISTINCT (@schema@.outbox_hash(k) & 1023)::integer AS bucket
              FROM unnest(p_keys) AS k WHERE k <> '' ORDER BY 1) AS b;
    END IF;
    INSERT INTO @schema@.outbox (occurred_at, hash, shard, message_id, type, key, exchange, routing_key, content_type,
                                 source, correlation_id, causation_id, request_id, traceparent, tracestate, headers, payload)
    SELECT m.occurred_at, h.hash, (h.hash & 9223372036854775807) % @schema@.outbox_shards(), m.message_id, m.type, m.key,
           m.exchange, m.routing_key, m.content_type, m.source, m.correlation_id, m.causation_id, m.request_id,
           m.traceparent, m.tracestate, m.headers::json, m.payload
    FROM unnest(p_message_ids, p_types, p_keys, p_exchanges, p_routing_keys, p_content_types, p_occurred_at, p_sources,
                p_correlation_ids, p_causation_ids, p_request_ids, p_traceparents, p_tracestates, p_headers, p_payloads)
         WITH ORDINALITY AS m(message_id, type, key, exchange, routing_key, content_type, occurred_at, source,
                correlation_id, causation_id, request_id, traceparent, tracestate, headers, payload, n)
    CROSS JOIN LATERAL (SELECT @schema@.outbox_fault(m.message_id, m.type, m.key, m.exchange, m.routing_key,
                m.content_type, m.occurred_at, m.source, m.correlation_id, m.causation_id, m.request_id, m.traceparent,
                m.tracestate, m.headers::json, m.payload) AS fault OFFSET 0) AS f
    CROSS JOIN LATERAL (SELECT CASE
                WHEN f.fault IS NOT NULL THEN @schema@.outbox_refuse(format('message %s: %s', m.n, f.fault))
                ELSE @schema@.outbox_hash(CASE WHEN m.key = '' THEN m.message_id ELSE m.key END) END AS hash OFFSET 0) AS h
    WHERE v_fresh IS NULL OR v_fresh[m.n]
    ORDER BY m.n;
    GET DIAGNOSTICS v_written = ROW_COUNT;
    IF v_written > 0 AND pg_sequence_last_value('@schema@.outbox_doorbell') = 2 THEN
        PERFORM pg_notify('@schema@_outbox', '');
    END IF;
    RETURN v_written;
END
$$;
-- +goose StatementEnd

-- By default every role may execute a new function, also one that runs with its owner's rights.
REVOKE EXECUTE ON FUNCTION @schema@.enqueue, @schema@.enqueue_batch FROM PUBLIC;
