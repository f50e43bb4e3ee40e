-- +goose Up

-- Refuses a traceparent that no reader of traces would take, and says of NULL that it is NULL. Rows that are in the outbox
-- already are published as they are.

-- Whether a text is a traceparent of W3C trace context, of version 00 or a later one.
CREATE FUNCTION @schema@.outbox_is_traceparent(p_text text) RETURNS boolean
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
    $$ SELECT p_text ~ '^(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-|$)'
          AND (octet_length(p_text) = 55 OR left(p_text, 2) <> '00') $$;

-- Which arguments are NULL.
-- +goose StatementBegin
CREATE FUNCTION @schema@.outbox_nulls(
    p_message_id text, p_type text, p_key text, p_exchange text, p_routing_key text, p_content_type text,
    p_occurred_at timestamptz, p_source text, p_correlation_id text, p_causation_id text, p_request_id text,
    p_traceparent text, p_tracestate text, p_payload bytea) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$
SELECT concat_ws(', ', CASE WHEN p_message_id IS NULL THEN 'message_id' END, CASE WHEN p_type IS NULL THEN 'type' END,
    CASE WHEN p_key IS NULL THEN 'key' END, CASE WHEN p_exchange IS NULL THEN 'exchange' END,
    CASE WHEN p_routing_key IS NULL THEN 'routing_key' END, CASE WHEN p_content_type IS NULL THEN 'content_type' END,
    CASE WHEN p_occurred_at IS NULL THEN 'occurred_at' END, CASE WHEN p_source IS NULL THEN 'source' END,
    CASE WHEN p_correlation_id IS NULL THEN 'correlation_id' END, CASE WHEN p_causation_id IS NULL THEN 'causation_id' END,
    CASE WHEN p_request_id IS NULL THEN 'request_id' END, CASE WHEN p_traceparent IS NULL THEN 'traceparent' END,
    CASE WHEN p_tracestate IS NULL THEN 'tracestate' END, CASE WHEN p_payload IS NULL THEN 'payload' END)
    || ' must not be NULL'
$$;
-- +goose StatementEnd

-- What the broker, or the reader of the row, would choke on, or NULL. It comes before the table's constraints,
-- whose errors would show the failing row with the beginning of its payload. A plain expression, to be inlined.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION @schema@.outbox_fault(
    p_message_id text, p_type text, p_key text, p_exchange text, p_routing_key text, p_content_type text,
    p_occurred_at timestamptz, p_source text, p_correlation_id text, p_causation_id text, p_request_id text,
    p_traceparent text, p_tracestate text, p_headers json, p_payload bytea) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$
SELECT CASE
    WHEN num_nulls(p_message_id, p_type, p_key, p_exchange, p_routing_key, p_content_type, p_occurred_at, p_source,
                   p_correlation_id, p_causation_id, p_request_id, p_traceparent, p_tracestate, p_payload) > 0
                                                                        THEN @schema@.outbox_nulls(
        p_message_id, p_type, p_key, p_exchange, p_routing_key, p_content_type, p_occurred_at, p_source,
        p_correlation_id, p_causation_id, p_request_id, p_traceparent, p_tracestate, p_payload)
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
    WHEN (p_traceparent = '' OR @schema@.outbox_is_traceparent(p_traceparent)) IS NOT TRUE
                                                                        THEN 'traceparent must be one of W3C trace context, for example "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"'
    WHEN (octet_length(p_tracestate) <= 512) IS NOT TRUE                THEN 'tracestate must have at most 512 bytes'
    WHEN (octet_length(p_payload) <= 134217728) IS NOT TRUE             THEN 'payload must have at most 128 MiB; store it elsewhere and send a reference'
    WHEN p_headers IS NOT NULL                                          THEN @schema@.outbox_headers_fault(p_headers)
END
$$;
-- +goose StatementEnd

-- As before, but for the traceparent.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION @schema@.enqueue(
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
        AND (traceparent = '' OR @schema@.outbox_is_traceparent(traceparent)) IS NOT FALSE
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
