#!/usr/bin/env bash
# Unpacks RabbitMQ 4 and its Erlang into the directory $1, by default where the tests look: Debian's stable release has
# RabbitMQ 3. $1/usr/lib/rabbitmq/bin/rabbitmq-server runs it, if $1/usr/lib/erlang/bin is the first in PATH.
set -euo pipefail
. "$(dirname "$0")/sid.sh"
to=${1:-$HOME/.cache/outbox_tasks/rabbitmq}
[ -e "$to/ready" ] && exit 0
unpack rabbitmq-server "$to"
sed -i "s|ROOTDIR=/usr/lib/erlang|ROOTDIR=$to/usr/lib/erlang|" "$to"/usr/lib/erlang/bin/erl "$to"/usr/lib/erlang/erts-*/bin/erl
touch "$to/ready"
