# shellcheck shell=bash
# Part of scripts/stack: the directory, the ports and the processes of one stack.

user_of() { case $1 in db | pgbouncer) echo postgres ;; broker) echo rabbitmq ;; esac; }

# as COMPONENT COMMAND...: as that component's user when we are root, as ourselves otherwise.
as() {
  set_prefix "$1"
  shift
  (cd / && exec "${prefix[@]}" "$@") # that user may not be allowed where we are
}

set_prefix() {
  local user
  prefix=(env)
  if ((EUID == 0)); then
    user=$(user_of "$1")
    prefix=(setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups --)
  fi
}

load_state() {
  # shellcheck source=/dev/null
  if [[ -f $stack/state ]]; then . "$stack/state"; fi
  data=$(cd "$stack/data" 2>/dev/null && pwd -P) || data=$stack/data
}

save_state() {
  local name
  (
    umask 077
    for name in id password db_port amqp_port management_port prometheus_port dist_port epmd_port; do
      printf '%s=%s\n' "$name" "${!name}"
    done >"$stack/state.new"
    env_lines >"$stack/env.new"
  )
  mv "$stack/state.new" "$stack/state"
  mv "$stack/env.new" "$stack/env"
}

random_hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }

database_url() { echo "postgres://surefoot:$password@127.0.0.1:$db_port/surefoot?sslmode=disable"; }
amqp_url() { echo "amqp://surefoot:$password@127.0.0.1:$amqp_port/"; }
management_url() { echo "http://127.0.0.1:$management_port"; }

env_lines() {
  [[ -z $db_port ]] || echo "export SUREFOOT_DATABASE_URL='$(database_url)'"
  [[ -z $amqp_port ]] || echo "export SUREFOOT_AMQP_URL='$(amqp_url)'"
  [[ -z $management_port ]] || echo "export SUREFOOT_MANAGEMENT_URL='$(management_url)'"
}

# Creates the stack's directory, takes its lock (fd 9, until we exit) and reads its state.
enter() {
  mkdir -p "$stack" || die "cannot create $stack; set SUREFOOT_STACK_DIR to a directory of your own"
  # The lock marks a stack's directory. Looked for after the content: another may just be making it.
  [[ -z $(find "$stack" -mindepth 1 -maxdepth 1 -print -quit) || -e $stack/lock ]] ||
    die "$stack is not empty and not a stack's directory; set SUREFOOT_STACK_DIR to an empty one"
  [[ -w $stack && (! -e $stack/lock || -w $stack/lock) ]] ||
    die "$stack belongs to another user; run as that user or set SUREFOOT_STACK_DIR to a directory of your own"
  command -v flock >/dev/null || die "flock is missing; install util-linux (macOS: brew install flock)"
  exec 9>"$stack/lock"
  flock -w 600 9 || die "another scripts/stack has held $stack/lock for ten minutes"
  load_state
  if [[ -z $id ]]; then
    id=$(random_hex 4) password=$(random_hex 10)
    # A standby has the primary's users.
    [[ -z ${SUREFOOT_STACK_PRIMARY:-} ]] || { password=${SUREFOOT_STACK_PRIMARY#*//*:} && password=${password%%@*}; }
    save_state
  fi
}

# Where the servers keep their files: below the stack's directory when the servers' users can go
# there, else in a directory under /var/tmp that .stack/data links to. Sets $data.
place_data() {
  local component=$1
  if [[ ! -e $stack/data ]]; then
    rm -f "$stack/data"
    mkdir "$stack/data"
    if ! usable "$stack/data" "$component"; then
      rmdir "$stack/data"
      ln -s "$(mktemp -d /var/tmp/surefoot-stack.XXXXXX)" "$stack/data"
      chmod 755 "$stack/data/"
    fi
  fi
  data=$(cd "$stack/data" && pwd -P)
  usable "$data" "$component" ||
    die "user $(user_of "$component") cannot enter $data; run scripts/stack reset, or set SUREFOOT_STACK_DIR"
  if [[ ! -d $data/$component ]]; then
    mkdir -m 700 "$data/$component"
    if ((EUID == 0)); then chown "$(user_of "$component"):" "$data/$component"; fi
  fi
  as "$component" test -O "$data/$component" ||
    die "$data/$component was made by another user; go on as that user, or run scripts/stack reset as them"
}

# RabbitMQ's scripts split some paths at blanks, so only plain characters will do.
usable() { (cd "$1" && [[ $(pwd -P) =~ ^[A-Za-z0-9._/-]+$ ]]) && (cd / && as "$2" test -x "$(cd "$1" && pwd -P)"); }

busy() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

preferred() {
  case $1 in
    db_port) echo 17500 ;; amqp_port) echo 17600 ;; management_port) echo 17700 ;;
    prometheus_port) echo 17800 ;; dist_port) echo 17900 ;; epmd_port) echo 18000 ;;
  esac
}

# The repository's own stack takes the preferred ports; further stacks start anywhere below the
# ephemeral range, so that two which start at once seldom choose the same.
choose_port() {
  local name=$1 port
  port=$(preferred "$name")
  if [[ -n ${SUREFOOT_STACK_DIR:-} ]]; then port=$((20000 + (RANDOM * 32768 + RANDOM) % 12000)); fi
  while busy "$port"; do port=$((port + 1)); done
  printf -v "$name" '%s' "$port"
}

ports_of() { case $1 in db) echo db_port ;; broker) echo amqp_port management_port prometheus_port dist_port epmd_port ;; esac; }

choose_ports() {
  local name
  for name in $(ports_of "$1"); do
    if [[ -z ${!name} ]] || { busy "${!name}" && ! { [[ $name == epmd_port ]] && own_epmd; }; }; then
      [[ -z ${!name} ]] || say "port ${!name} is taken by someone else; choosing another"
      choose_port "$name"
    fi
  done
  save_state
}

port_taken() {
  local name
  for name in $(ports_of "$1"); do
    if [[ $name != epmd_port ]] && busy "${!name}"; then return 0; fi
  done
  return 1
}

# command_of PID: its command line with blanks for separators; empty when there is no such process.
command_of() {
  if [[ -r /proc/self/cmdline ]]; then
    { tr '\0' ' ' <"/proc/$1/cmdline"; } 2>/dev/null || true
  else
    ps -o command= -p "$1" 2>/dev/null || true
  fi
}

# alive PID: whether there is such a process. Its command line does not tell: that is empty for a moment of each exec.
# A dead process that nobody has waited for is gone; one of which threads are left is not, for they hold its ports.
alive() {
  local line fields
  if [[ -r /proc/self/stat ]]; then
    { IFS= read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
    IFS=' ' read -ra fields <<<"${line##*) }" # the name before it may hold anything
    [[ ${fields[0]} != [ZX] ]] || ((fields[17] > 1)) # state, number of threads
  else
    line=$(ps -o stat= -p "$1" 2>/dev/null) && [[ $line != Z* ]]
  fi
}

# A pid counts only when the process is ours by its command line: after a reboot it may be anybody.
db_pid() {
  local pid
  pid=$(head -n 1 "$data/db/cluster/postmaster.pid" 2>/dev/null) || return 0
  if [[ $(command_of "$pid") == *"-D $data/db/cluster"* ]]; then echo "$pid"; fi
}

# RabbitMQ writes its own pid file only some time after it has begun to listen, so that is the last resort.
broker_pid() {
  local pid command
  [[ -n $id ]] || return 0
  for pid in $(pids_with "$id") $(cat "$data/broker/pid" 2>/dev/null); do
    command=$(command_of "$pid")
    if [[ ${command%% *} == */beam* && $command == *"-surefoot_stack $id "* ]]; then echo "$pid" && return; fi
  done
}

pids_with() { grep -laF -e "$1" /proc/[0-9]*/cmdline 2>/dev/null | cut -d / -f 3 || true; }

# await_gone SECONDS PID...: whether all of them ended within that time.
await_gone() {
  local until=$((SECONDS + $1)) pid
  shift
  for pid; do
    while alive "$pid"; do
      ((SECONDS < until)) || return 1
      sleep 0.1
    done
  done
}
