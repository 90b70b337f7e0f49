#!/bin/sh
# What a container of the image runs. A role is a process of the relay: claim, publish, maintenance, feeds, beat, flower or web;
# what follows is for its program (publish --concurrency 8). celery, python and sh are these programs. Everything else is
# a command of outbox-tasks: init, status, drain --for 50 …
set -eu
role=${1:---help}
case $role in
  claim | publish | maintenance | feeds)
    shift
    set -- celery -A "workers.$role" worker --loglevel "${LOG_LEVEL:-INFO}" -n "$role@%h" "$@"
    ;;
  beat)
    shift
    set -- celery -A beat_schedule beat --loglevel "${LOG_LEVEL:-INFO}" "$@"
    ;;
  flower)
    shift
    set -- celery -A outbox_tasks flower --address=0.0.0.0 --port=5555 \
      --tasks-columns=name,uuid,state,args,retries,eta,received,runtime,worker "$@"
    ;;
  web)
    shift
    set -- outbox-tasks web --host 0.0.0.0 "$@"
    ;;
  celery | python | sh) ;;
  *) set -- outbox-tasks "$@" ;;
esac
echo "$role" >"${TMPDIR:-/tmp}/role" || true # for healthy.sh
exec "$@"
