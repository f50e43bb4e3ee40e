-- Roles of Surefoot in PostgreSQL: one for each role of the binary, with the rights that it needs and no others.
--
--   1. as a superuser, in the database that Surefoot lives in:   psql -f deploy/postgres/roles.sql
--   2. give each role that logs in a password, or a line in pg_hba.conf:   \password surefoot_relay
--   3. as surefoot_owner:   surefoot migrate up   and   psql -f deploy/postgres/grants.sql
--
-- Repeat 3 with every new version: new tables come without rights. Another schema than "surefoot" needs its name here and there.
-- Roles are the cluster's: a second Surefoot on it needs other names.

CREATE ROLE surefoot_owner LOGIN;      -- migrates, owns the schema; no process that runs for long
CREATE ROLE surefoot_producer NOLOGIN; -- for your programs: GRANT surefoot_producer TO shop
CREATE ROLE surefoot_relay LOGIN;
CREATE ROLE surefoot_consume LOGIN;
CREATE ROLE surefoot_dlq LOGIN;        -- the dead letters' index and their redrives, and who operates them
CREATE ROLE surefoot_watchdog LOGIN;
CREATE ROLE surefoot_reconcile LOGIN;
CREATE ROLE surefoot_run LOGIN;        -- one process with all roles: `surefoot run`
CREATE ROLE surefoot_operator LOGIN;   -- people, and `surefoot console`

-- Handlers, rules of the watchdog and of reconciliation emit events.
GRANT surefoot_producer TO surefoot_consume, surefoot_watchdog, surefoot_reconcile;
GRANT surefoot_relay, surefoot_consume, surefoot_dlq, surefoot_watchdog, surefoot_reconcile TO surefoot_run;
GRANT surefoot_dlq, surefoot_watchdog, surefoot_reconcile TO surefoot_operator;

CREATE SCHEMA surefoot AUTHORIZATION surefoot_owner;
