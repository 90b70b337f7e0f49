#!/usr/bin/env bash
# Unpacks MySQL's server into the directory $1, by default where the tests look: Debian's stable releases have MariaDB only.
# $1/mysqld runs it.
set -euo pipefail
. "$(dirname "$0")/sid.sh"
to=${1:-$HOME/.cache/outbox_tasks/mysql}
[ -x "$to/mysqld" ] && exit 0
unpack mysql-server-core "$to"
ln -s usr/sbin/mysqld "$to/mysqld"
"$to/mysqld" --version
