# shellcheck shell=bash
# Part of scripts/stack: what is installed, and installing what is missing.

brew_prefix() { command -v brew >/dev/null && brew --prefix; }

# The directory of the newest PostgreSQL >= 15, empty if there is none.
db_bin() {
  local dir best="" version top=14
  for dir in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin "$(brew_prefix || true)"/opt/postgresql@*/bin \
    "$(dirname "$(command -v postgres || echo /nowhere/postgres)")"; do
    [[ -x $dir/postgres && -x $dir/initdb && -x $dir/pg_ctl ]] || continue
    version=$("$dir/postgres" --version | sed -nE 's/^[^0-9]*([0-9]+).*/\1/p')
    if ((version > top)); then top=$version best=$dir; fi
  done
  printf '%s' "$best"
}

broker_bin() { if [[ -n $(broker_root) ]]; then printf '/usr/lib/rabbitmq/bin'; else system_broker_bin; fi; }

# The directory of RabbitMQ's own scripts (not the distribution's wrappers, which refuse other users),
# empty if there is none >= 3.10.
system_broker_bin() {
  local dir version
  for dir in /usr/lib/rabbitmq/bin "$(brew_prefix || true)/opt/rabbitmq/sbin" \
    "$(dirname "$(readlink -f "$(command -v rabbitmq-server || echo /nowhere/rabbitmq-server)")")"; do
    [[ -x $dir/rabbitmq-server && -x $dir/rabbitmqctl ]] || continue
    version=$(readlink -f "$dir/rabbitmq-server" | sed -nE 's#.*[/-]([0-9]+\.[0-9]+)\.[0-9]+.*/sbin/.*#\1#p')
    [[ -n $version ]] || version=$("$dir/rabbitmqctl" version 2>/dev/null | sed -nE 's/^([0-9]+\.[0-9]+).*/\1/p')
    if newer_or_equal "${version:-0}" 3.10; then printf '%s' "$dir"; return; fi
  done
}

newer_or_equal() { [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$2" ]]; }

# The program of scripts/pgbouncer, empty if there is none.
pgbouncer_bin() { PATH=$PATH:/usr/sbin command -v pgbouncer || true; }

# The program of scripts/alerts, empty if there is none.
promtool_bin() { if [[ -n ${SUREFOOT_PROMTOOL:-} ]]; then printf '%s' "$SUREFOOT_PROMTOOL"; else command -v promtool || true; fi; }

# The program of scripts/browser, empty if there is none.
browser_bin() {
  local name
  if [[ -n ${SUREFOOT_BROWSER:-} ]]; then printf '%s' "$SUREFOOT_BROWSER" && return; fi
  for name in chromium chromium-browser google-chrome-stable google-chrome; do
    if command -v "$name"; then return; fi
  done
}

# Fonts for it: without any its pages are empty.
fonts() { find /usr/share/fonts /usr/local/share/fonts /Library/Fonts -name '*.[to]tf' -print -quit 2>/dev/null || true; }

installed() {
  [[ -n $(case $1 in
    db) db_bin ;; broker) system_broker_bin ;; pgbouncer) pgbouncer_bin ;; browser) browser_bin ;; fonts) fonts ;;
    promtool) promtool_bin ;; buildah) command -v buildah ;;
  esac) ]]
}

package_of() {
  case $1 in db) echo postgresql ;; broker) echo rabbitmq-server ;; browser) echo chromium ;; fonts) echo fonts-liberation ;; promtool) echo prometheus ;; *) echo "$1" ;; esac
}

needs() {
  case $1 in
    db) echo "PostgreSQL 15 or newer" ;; broker) echo "RabbitMQ 3.10 or newer" ;; pgbouncer) echo "PgBouncer" ;;
    browser) echo "Chromium" ;; fonts) echo "any TrueType font" ;; promtool) echo "promtool 2.30 or newer" ;;
    buildah) echo "buildah 1.28 or newer" ;;
  esac
}

# install_packages COMPONENT...: whatever of them is missing. The one place that changes the machine.
install_packages() {
  local component missing=() packages=()
  for component; do
    if ! installed "$component"; then missing+=("$component") packages+=("$(package_of "$component")"); fi
  done
  if ((${#missing[@]})); then install_missing; fi
  [[ " $* " != *" broker "* ]] || install_root
}

install_missing() {
  if command -v apt-get >/dev/null; then
    install_with_apt "${packages[@]}"
  elif command -v brew >/dev/null; then
    install_with_brew "${missing[@]}"
  fi
  for component in "${missing[@]}"; do installed "$component" || give_up "$component"; done
}

give_up() {
  say "$(needs "$1") is missing, and this script cannot install it here."
  say "Install it with its server programs (PostgreSQL: https://www.postgresql.org/download/,"
  say "RabbitMQ: https://www.rabbitmq.com/docs/download), no service needs to run, and try again;"
  say "or use containers: docker compose -f deploy/compose.yaml up -d, whose first lines say how to go on."
  exit 1
}

# Untested: nobody of us has a Mac at hand.
install_with_brew() {
  local component
  for component; do
    case $component in db) brew install postgresql@17 flock >&2 ;; broker) brew install rabbitmq flock >&2 ;; *) brew install "$component" >&2 ;; esac
  done
}

install_with_apt() {
  if ((EUID != 0)); then
    sudo -n true 2>/dev/null || die "$* must be installed first; please run once as root: $self install"
    sudo -n "$BASH" "$self" install
    return
  fi
  say "installing $* with apt-get, which takes some minutes; their own services are neither started nor enabled"
  local package
  quietly apt_get update
  for package; do candidate_fits "$package"; done
  local epmd_is_new=""
  command -v epmd >/dev/null || epmd_is_new=yes
  trap allow_services EXIT
  forbid_services
  quietly apt_get install --no-install-recommends "$@"
  allow_services
  trap - EXIT
  for package; do update-rc.d "$package" disable >/dev/null 2>&1 || true; done # systemd's links too
  if [[ $epmd_is_new ]] && command -v systemctl >/dev/null; then
    systemctl disable epmd.service epmd.socket >/dev/null 2>&1 || true
  fi
}

apt_get() {
  DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@" </dev/null
}

# Shows what a command prints only when it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "$* failed; its output is above"
  fi
  rm -f "$log"
}

# Better no package than one that is too old.
candidate_fits() {
  local version wanted=15
  case $1 in rabbitmq-server) wanted=3.10 ;; pgbouncer) wanted=1.12 ;; chromium) wanted=105 ;; fonts-*) wanted=0 ;; prometheus) wanted=2.30 ;; buildah) wanted=1.28 ;; esac
  version=$(apt-cache policy "$1" | sed -nE 's/^ *Candidate: ([0-9]+:)?([0-9.]+).*/\2/p')
  newer_or_equal "${version:-0}" "$wanted" && return
  say "this system offers $1 ${version:-(none)}, but $wanted or newer is needed"
  case $1 in postgresql) give_up db ;; rabbitmq-server) give_up broker ;; *) give_up "$1" ;; esac
}

# Packages of services start them when they are installed, unless this policy says no. An existing
# policy is set aside and comes back; PostgreSQL's package is told to make no cluster of its own.
policy=/usr/sbin/policy-rc.d
no_cluster=/etc/postgresql-common/createcluster.d/surefoot-stack.conf

forbid_services() {
  [[ ! -e $policy.before-surefoot ]] || allow_services # an earlier run was killed
  if [[ -e $policy || -L $policy ]]; then mv "$policy" "$policy.before-surefoot"; fi
  printf '#!/bin/sh\n# surefoot-stack: for the time of one installation\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  mkdir -p "$(dirname "$no_cluster")"
  echo "create_main_cluster = false" >"$no_cluster"
}

allow_services() {
  if grep -qs surefoot-stack "$policy"; then rm -f "$policy"; fi
  if [[ -e $policy.before-surefoot || -L $policy.before-surefoot ]]; then mv "$policy.before-surefoot" "$policy"; fi
  rm -f "$no_cluster"
}
