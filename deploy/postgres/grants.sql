-- Rights of the roles in deploy/postgres/roles.sql, after every `surefoot migrate up`; as surefoot_owner. Running it again changes nothing.

REVOKE ALL ON ALL TABLES IN SCHEMA surefoot FROM PUBLIC;
GRANT USAGE ON SCHEMA surefoot TO surefoot_producer, surefoot_relay, surefoot_consume, surefoot_dlq, surefoot_watchdog, surefoot_reconcile, surefoot_operator;
GRANT SELECT ON surefoot.schema_version TO surefoot_producer, surefoot_relay, surefoot_consume, surefoot_dlq, surefoot_watchdog, surefoot_reconcile, surefoot_operator;

-- The two functions are the only way to write the outbox.
GRANT EXECUTE ON FUNCTION surefoot.enqueue, surefoot.enqueue_batch TO surefoot_producer;
-- Programs with more than events need more: resilience/idempotency SELECT, INSERT, UPDATE, DELETE on surefoot.idempotency,
-- resilience/policy the same on surefoot.circuits; one with a consumer of its own is a surefoot_consume.

-- relay: settles, parks, cleans. The audit takes inserts; only its retention deletes.
GRANT SELECT, DELETE ON surefoot.outbox, surefoot.outbox_once TO surefoot_relay;
GRANT SELECT, INSERT, UPDATE, DELETE ON surefoot.outbox_parked, surefoot.outbox_leases, surefoot.outbox_members, surefoot.outbox_requests,
    surefoot.outbox_stopped TO surefoot_relay;
GRANT SELECT ON SEQUENCE surefoot.outbox_id_seq TO surefoot_relay;
GRANT SELECT, UPDATE ON SEQUENCE surefoot.outbox_doorbell TO surefoot_relay;
GRANT SELECT, INSERT, DELETE ON surefoot.audit TO surefoot_relay;

-- consume: the inbox, circuits of endpoints, and the index of dead letters, into which it writes what it sends there.
GRANT SELECT, INSERT, DELETE ON surefoot.inbox TO surefoot_consume;
GRANT SELECT, INSERT, UPDATE, DELETE ON surefoot.inbox_consumers, surefoot.inbox_suspects, surefoot.circuits TO surefoot_consume;
GRANT SELECT, INSERT, UPDATE ON surefoot.dlq_queues, surefoot.dlq_groups, surefoot.dlq_letters TO surefoot_consume;
GRANT SELECT ON surefoot.pauses TO surefoot_consume;

-- dlq: the index, runs, the archive; what was handled already is read from the inbox.
GRANT SELECT, INSERT, UPDATE, DELETE ON surefoot.dlq_lock, surefoot.dlq_queues, surefoot.dlq_groups, surefoot.dlq_letters, surefoot.dlq_runs,
    surefoot.dlq_run_letters, surefoot.dlq_archive, surefoot.dlq_edits TO surefoot_dlq;
GRANT SELECT ON surefoot.inbox, surefoot.inbox_consumers, surefoot.pauses TO surefoot_dlq;
GRANT SELECT, INSERT, DELETE ON surefoot.audit TO surefoot_dlq;

-- watchdog and reconcile: what failed, and their runs. Their rules also need rights on your tables:
--   GRANT USAGE ON SCHEMA shop_orders TO surefoot_watchdog;
--   GRANT SELECT, UPDATE ON shop_orders.orders TO surefoot_watchdog;
GRANT SELECT, INSERT, UPDATE, DELETE ON surefoot.watchdog_failures, surefoot.watchdog_holds TO surefoot_watchdog;
GRANT SELECT, INSERT, UPDATE, DELETE ON surefoot.reconcile_runs, surefoot.reconcile_suspects, surefoot.circuits TO surefoot_reconcile;

-- operator: looks at everything; pauses queues, asks the relay, writes the audit, and is a member of what it repairs.
GRANT SELECT ON ALL TABLES IN SCHEMA surefoot TO surefoot_operator;
GRANT SELECT ON SEQUENCE surefoot.outbox_id_seq TO surefoot_operator;
GRANT INSERT ON surefoot.outbox_requests, surefoot.audit TO surefoot_operator;
GRANT INSERT, UPDATE, DELETE ON surefoot.pauses TO surefoot_operator;
