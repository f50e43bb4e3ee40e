# shellcheck shell=bash
# Part of scripts/stack: the RabbitMQ server and its port mapper.

# Nothing of the machine's own RabbitMQ settings reaches this node or its tools. Sets $environment.
set_environment() {
  local dir=$data/broker loopback="-kernel inet_dist_use_interface {127,0,0,1}"
  environment=(env -i PATH="$PATH" HOME="$dir" LANG=C.UTF-8
    ERL_EPMD_PORT="$epmd_port" ERL_EPMD_ADDRESS=127.0.0.1 ERL_CRASH_DUMP="$dir/erl_crash.dump"
    RABBITMQ_NODENAME="surefoot$id@localhost" RABBITMQ_DIST_PORT="$dist_port" RABBITMQ_PID_FILE="$dir/pid"
    RABBITMQ_CONF_ENV_FILE="$dir/none" RABBITMQ_CONFIG_FILE="$dir/rabbitmq.conf"
    RABBITMQ_ADVANCED_CONFIG_FILE="$dir/none" RABBITMQ_ENABLED_PLUGINS_FILE="$dir/plugins"
    RABBITMQ_MNESIA_BASE="$dir/mnesia" RABBITMQ_LOG_BASE="$dir/log" RABBITMQ_LOGS="$dir/log/broker.log"
    RABBITMQ_GENERATED_CONFIG_DIR="$dir/generated"
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="$loopback -surefoot_stack $id" RABBITMQ_CTL_ERL_ARGS="$loopback")
}

broker_settings() {
  cat <<CONF
listeners.tcp.1 = 127.0.0.1:$amqp_port
management.tcp.ip = 127.0.0.1
management.tcp.port = $management_port
prometheus.tcp.ip = 127.0.0.1
prometheus.tcp.port = $prometheus_port
default_user = surefoot
default_pass = $password
default_user_tags.administrator = true
log.file.level = info
CONF
  if [[ -f $stack/broker.conf ]]; then cat "$stack/broker.conf"; fi # a test's own settings
}

broker_write() { (umask 077 && as broker tee "$data/broker/$1" >/dev/null); }

broker_launch() {
  local bin pid until=$((SECONDS + 180))
  bin=$(broker_bin)
  as broker mkdir -p "$data/broker/log"
  broker_settings | broker_write rabbitmq.conf
  echo '[rabbitmq_management,rabbitmq_prometheus].' | broker_write plugins
  [[ -s $data/broker/.erlang.cookie ]] || random_hex 16 | broker_write .erlang.cookie
  as broker chmod 400 "$data/broker/.erlang.cookie"
  as broker rm -f "$data/broker/pid"
  raise_file_limit
  set_environment
  set_broker_prefix
  # In a session of its own: a signal to the caller's terminal or process group must not reach it.
  local session=setsid
  command -v setsid >/dev/null || session=nohup
  (cd "$data/broker" && exec "$session" "${prefix[@]}" "${environment[@]}" "$bin/rabbitmq-server") \
    >>"$stack/broker-start.log" 2>&1 </dev/null 9>&- &
  pid=$!
  until broker_ready; do
    alive "$pid" || return 1
    ((SECONDS < until)) || die "the broker was not ready after three minutes; see scripts/stack logs broker"
    sleep 0.2
  done
}

raise_file_limit() {
  local hard
  hard=$(ulimit -Hn)
  if [[ $hard == unlimited ]] || ((hard > 65536)); then hard=65536; fi
  ulimit -Sn "$hard" 2>/dev/null || true
}

broker_stop() {
  local pid
  pid=$(broker_pid)
  if [[ -n $pid ]]; then
    kill -TERM "$pid"
    await_gone 60 "$pid" || broker_kill
  fi
  if own_epmd; then epmd -port "$epmd_port" -kill >/dev/null 2>&1 || true; fi
}

broker_kill() {
  local pid
  pid=$(broker_pid)
  [[ -n $pid ]] || return 0
  kill -9 "$pid"
  await_gone 30 "$pid" || die "the broker did not end after kill -9"
}

# Whether a port mapper on our port answers and knows no node but ours. Asked in its own protocol, because
# its program waits for ever when something else listens there.
own_epmd() {
  [[ -n $epmd_port ]] || return 1
  (
    exec 2>/dev/null 3<>"/dev/tcp/127.0.0.1/$epmd_port" && printf '\x00\x01n' >&3 || exit 1
    export LC_ALL=C # bytes: the answer begins with its port number
    while IFS= read -r -t 3 line <&3; do
      [[ $line == *"name surefoot$id at port "* ]] || exit 1
      ours=1
    done
    [[ -n ${ours:-} || ${#line} -le 4 && -n $line ]] # a name of ours, or only the port number: no names
  )
}

# It speaks AMQP, and its management page lets our user in (no curl: a fresh machine may have none).
broker_ready() {
  (
    exec 2>/dev/null 3<>"/dev/tcp/127.0.0.1/$amqp_port" && printf 'AMQP\x00\x00\x09\x01' >&3 || exit 1
    IFS= read -r -t 5 -n 1 first <&3 && [[ $first == $'\x01' ]] # the frame that begins the handshake
  ) && (
    exec 2>/dev/null 3<>"/dev/tcp/127.0.0.1/$management_port" || exit 1
    printf 'GET /api/overview HTTP/1.0\r\nAuthorization: Basic %s\r\n\r\n' \
      "$(printf 'surefoot:%s' "$password" | base64)" >&3
    IFS= read -r -t 5 line <&3 && [[ $line == *" 200 "* ]]
  )
}
