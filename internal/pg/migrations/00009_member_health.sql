-- +goose Up

-- Since when a relay could publish, as far as it knows: it has a connection to the broker and may take fences there. NULL: it
-- cannot. One that cannot keeps no shard from one that can. The default is for relays that do not tell.
ALTER TABLE @schema@.outbox_members ADD COLUMN able_since timestamptz DEFAULT clock_timestamp();
