# shellcheck shell=bash
# Part of scripts/stack: a RabbitMQ of another generation than the system's, from Debian's packages in a root of its own.

generation=${SUREFOOT_STACK_BROKER:-}
roots=${SUREFOOT_BROKER_ROOTS:-/var/tmp/surefoot-brokers/roots}

suite_of() {
  case $1 in
    3.10) echo bookworm ;;
    4.0) echo trixie ;;
    4.3) echo sid ;;
    *) die "there is no RabbitMQ generation '$1' here; SUREFOOT_STACK_BROKER takes 3.10, 4.0 or 4.3" ;;
  esac
}

# The version below a directory of the system's packages, as 4.0.5; empty if there is none.
packaged_version() {
  local found
  for found in "$1"/usr/lib/rabbitmq/lib/rabbitmq_server-*; do
    if [[ -d $found ]]; then printf '%s' "${found##*-}"; fi
  done
}

# The root to run the broker in: empty when no generation is asked for, or the system's own is of it.
broker_root() {
  local suite
  [[ -n $generation && $(packaged_version "") != "$generation".* ]] || return 0
  suite=$(suite_of "$generation") # dies here, not in a substitution
  printf '%s' "$roots/$suite"
}

# Makes the root, once for all stacks of this machine.
install_root() {
  local root suite version
  root=$(broker_root)
  [[ -n $root ]] || return 0
  ((EUID == 0)) || die "RabbitMQ $generation runs in a root of its own; please run as root"
  mkdir -p "$roots"
  (
    flock -w 1800 8
    [[ ! -d $root ]] || exit 0
    suite=$(suite_of "$generation")
    command -v debootstrap >/dev/null || { quietly apt_get update && quietly apt_get install debootstrap; }
    say "fetching RabbitMQ $generation from Debian's $suite into $root (300 MB), which takes some minutes"
    rm -rf "$root.part"
    quietly debootstrap --variant=minbase --include=rabbitmq-server "$suite" "$root.part"
    printf '127.0.0.1 localhost\n' >"$root.part/etc/hosts"
    mv "$root.part" "$root"
  ) 8>"$roots/lock"
  version=$(packaged_version "$root")
  [[ $version == "$generation".* ]] ||
    die "Debian's $(suite_of "$generation") now has RabbitMQ ${version:-(none)}, not $generation; remove $root, and take another suite in ${BASH_SOURCE[0]}"
}

# set_broker_prefix: $prefix for a program of the broker: as its user, and in its root where it has one. There it sees the
# stack's directory, for a test's own settings name files in it. The mounts are in a namespace of the program's own, and
# go with it.
set_broker_prefix() {
  local root user
  root=$(broker_root)
  set_prefix broker
  [[ -n $root ]] || return 0
  user=$(user_of broker)
  # shellcheck disable=SC2016 # the inner shell expands it
  prefix=(unshare --mount -- bash -c '
    set -e
    root=$1 user=$2 stack=$3 data=$4; shift 4
    mount --bind /proc "$root/proc"
    mount --bind /dev "$root/dev"
    for dir in "$stack" "$data"; do
      mkdir -p "$root$dir"
      mount --bind "$dir" "$root$dir"
    done
    exec chroot --userspec="$user" "$root" "$@"' in-root "$root" "$(id -u "$user"):$(id -g "$user")" "$stack" "$data/broker")
}
