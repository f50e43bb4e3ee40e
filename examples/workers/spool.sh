#!/bin/sh
# A worker of one process per message: puts the body of each order.created into a directory, for another program to fetch.
#
#   target: {exec: [/usr/local/bin/spool.sh, /var/spool/mails]}
#
# A file appears whole or not at all, and under a name made of the message's id: a repeat finds it there.
set -eu

spool=${1:?usage: spool.sh DIRECTORY}
if [ "$SUREFOOT_TYPE" != order.created ]; then
  echo "unknown type" >&2
  exit 65
fi
name=$(printf '%s' "$SUREFOOT_MESSAGE_ID" | sha256sum | cut -c 1-64)
draft=$(mktemp "$spool/.draft.XXXXXX")
trap 'rm -f "$draft"' EXIT
cat >"$draft"
if [ ! -s "$draft" ]; then
  echo "the body is empty" >&2
  exit 65
fi
ln "$draft" "$spool/$name" 2>/dev/null || [ -e "$spool/$name" ]
