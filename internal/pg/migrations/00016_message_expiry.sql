-- +goose Up

-- One header of Surefoot's may be given: sf-expires-at, when the whole job expires, in Unix milliseconds by the database's clock:
--   headers => json_build_object('sf-expires-at', (extract(epoch FROM clock_timestamp() + interval '10 min') * 1000)::bigint)
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION @schema@.outbox_headers_fault(p_headers json) RETURNS text
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
    -- 13 digits are the years 2001 to 2286.
    IF (p_headers -> 'sf-expires-at')::text !~ '^[0-9]{13}$' THEN
        RETURN 'the header "sf-expires-at" is not Unix milliseconds';
    END IF;
    SELECT k INTO v_name FROM json_object_keys(p_headers) AS k
    WHERE k <> 'sf-expires-at' AND (octet_length(k) NOT BETWEEN 1 AND 255 OR k IN ('CC', 'BCC')
       OR lower(k) ~ ('^(sf-.*|x-request-id|traceparent|tracestate|x-attempts|x-reprocess|x-death|x-delivery-count'
           '|x-acquired-count|x-delay|x-stream-offset|x-stream-filter|x-stream-filter-value|x-received-from'
           '|x-shovelled|x-shovelled-timestamp|(x-first-death-|x-last-death-|x-opt-|x-mqtt-|x-amqp-1\.0-).*)$'))
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
