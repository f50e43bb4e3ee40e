# shellcheck shell=bash
# Part of scripts/stack: the PostgreSQL server.

# Made beside its final place and moved there when complete, so that a killed start leaves no half cluster.
db_create() {
  local bin=$1 dir=$data/db
  [[ ! -d $dir/cluster ]] || return 0
  if [[ -n ${SUREFOOT_STACK_PRIMARY:-} ]]; then db_copy "$bin"; return; fi
  say "creating the database cluster"
  as db rm -rf "$dir/new" "$dir/password" &&
    (umask 077 && printf '%s\n' "$password" | as db tee "$dir/password" >/dev/null) &&
    as db "$bin/initdb" -D "$dir/new" -U surefoot --pwfile="$dir/password" --auth=scram-sha-256 \
      --encoding=UTF8 --locale=C --no-sync >/dev/null &&
    as db rm "$dir/password" &&
    echo 'CREATE DATABASE surefoot' | as db "$bin/postgres" --single -D "$dir/new" postgres >/dev/null 2>&1 &&
    as db mv "$dir/new" "$dir/cluster"
}

# A standby that follows the server at SUREFOOT_STACK_PRIMARY, asynchronously.
db_copy() {
  local bin=$1 dir=$data/db
  say "copying the primary's database cluster"
  as db rm -rf "$dir/new" &&
    as db "$bin/pg_basebackup" -D "$dir/new" -d "$SUREFOOT_STACK_PRIMARY" -X stream -c fast --write-recovery-conf --no-sync &&
    as db mv "$dir/new" "$dir/cluster"
}

db_settings() {
  cat <<CONF
listen_addresses = '127.0.0.1'
port = $db_port
unix_socket_directories = ''
max_connections = 200
shared_buffers = 128MB
fsync = on
synchronous_commit = on
jit = off
timezone = 'UTC'
log_timezone = 'UTC'
log_line_prefix = '%m [%p] %a '
CONF
}

db_launch() {
  local bin
  bin=$(db_bin)
  db_create "$bin" || return
  db_settings | as db tee "$data/db/cluster/postgresql.conf" >/dev/null
  # A live process that is not ours under the old number would keep PostgreSQL from starting.
  local old
  old=$(head -n 1 "$data/db/cluster/postmaster.pid" 2>/dev/null || true)
  if [[ -n $old ]] && alive "$old"; then as db rm -f "$data/db/cluster/postmaster.pid"; fi
  as db "$bin/pg_ctl" -D "$data/db/cluster" -l "$data/db/log" -w -t 120 start </dev/null >/dev/null 2>&1 9>&-
}

db_stop() {
  local pid
  pid=$(db_pid)
  [[ -n $pid ]] || return 0
  kill -INT "$pid" # fast shutdown: open transactions are rolled back
  await_gone 60 "$pid" || db_kill
}

# The children too, as a power failure would take them: PostgreSQL starts again only when all are gone.
db_kill() {
  local pid children
  pid=$(db_pid)
  [[ -n $pid ]] || return 0
  children=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null || true)
  kill -9 "$pid"
  # shellcheck disable=SC2086 # one word per child
  [[ -z $children ]] || kill -9 $children 2>/dev/null || true
  # shellcheck disable=SC2086
  await_gone 30 "$pid" $children || die "the database's processes did not end after kill -9"
}

db_promote() { as db "$(db_bin)/pg_ctl" -D "$data/db/cluster" -w -t 60 promote >/dev/null; }

db_ready() { busy "$db_port"; }
