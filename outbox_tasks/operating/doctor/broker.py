"""Celery's broker: whether it answers, and whether it keeps its queues. A Redis is asked only for INFO: managed
servers forbid CONFIG."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kombu import Producer

from outbox_tasks.broker import stamp
from outbox_tasks.errors import BrokerUnreachable, CrossedWires
from outbox_tasks.operating.doctor.clocks import compared
from outbox_tasks.operating.doctor.finding import Finding, Fine, error, note, or_fine, warning
from outbox_tasks.operating.doctor.site import Results, Site

NEARLY, ALMOST = 0.8, 0.95
"""Shares of its memory limit: from the first on a Redis is short of memory, from the second on it will soon refuse
writes."""

OLDEST = (6, 2)
"""The first Redis with all commands that kombu uses."""


def reach(site: Site) -> Results:
    """Whether the broker answers. Without that, no other check of it can run."""
    if site.installed is None and site.settings.broker_url is None:
        yield note(
            "broker_unknown",
            "OUTBOX_BROKER_URL is not set: the broker was not checked.",
            "If an application's workers run the relay, they use the application's broker.",
            "Set OUTBOX_BROKER_URL; or ask through the application: celery -A <your app> outbox doctor",
        )
        return
    try:
        with site.broker.producer() as producer:
            producer.connection.ensure_connection(max_retries=1)
            found = info(producer)
    except BrokerUnreachable as away:
        yield error(
            "broker_away",
            f"The broker {away.url} can't be reached: {str(away.reason).rstrip('.')}.",
            "Nothing is claimed or sent until it is back. Nothing is lost: the database has all messages.",
            "Start it, or correct OUTBOX_BROKER_URL. See that its firewall and password let the relay in, and that its "
            "certificate is trusted here (ssl_ca_certs in the URL).",
        )
        return
    site.reached.add("broker")
    if found is None:
        yield Fine("the broker answers")
        return
    site.reached.add("redis")
    kind, version = _version(found)
    yield Fine(f"{kind} {version} answers")


def info(producer: Producer) -> dict[str, Any] | None:
    """The INFO of a Redis; None if the broker is not a Redis."""
    channel = producer.channel
    if not hasattr(channel, "client"):
        return None
    with channel.conn_or_acquire() as client:
        return dict(client.info())


def stamped(site: Site) -> Results:
    """Whether the broker belongs to this outbox."""
    outbox = site.store.identity
    with site.broker.producer() as producer:
        owner = stamp.look(producer, outbox)
    try:
        site.broker.check_owner(owner, outbox)
    except CrossedWires as crossed:
        yield error(
            "crossed_wires",
            f"The broker {crossed.broker} belongs to another outbox: {crossed.owner}. This is {outbox}.",
            "Two relays on one broker take each other's tasks: messages wait until their leases end. So a relay whose "
            "outbox is not the broker's does not start, and claims nothing.",
            "Give each a broker of its own (OUTBOX_BROKER_URL: another number of Redis, or another virtual host), or "
            "correct OUTBOX_DATABASE_URL.\n"
            "The same outbox, moved here (docs/operate.md, One broker, one outbox): outbox-tasks adopt",
        )
        return
    if owner is not None:
        yield Fine("it belongs to this outbox")


def redis(site: Site) -> Results:
    """Whether the Redis keeps its queues."""
    with site.broker.producer() as producer:
        found = info(producer) or {}
    return or_fine([*old(found), *_evicts(found), *_full(found)], "it evicts nothing, and has memory left")


def _version(found: dict[str, Any]) -> tuple[str, str]:
    return ("Valkey", found["valkey_version"]) if "valkey_version" in found else ("Redis", found["redis_version"])


def old(found: dict[str, Any]) -> Iterator[Finding]:
    """Whether the Redis lacks commands that kombu uses."""
    _, version = _version(found)
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        yield error(
            "redis_old",
            f"The broker is Redis {version}; Celery's transport needs 6.2 or later.",
            "Nobody gets the tasks that a lost worker held, and other commands fail.",
            "Upgrade it to Redis 7 or Valkey 8.",
        )


def _evicts(found: dict[str, Any]) -> Iterator[Finding]:
    policy, limit = str(found.get("maxmemory_policy", "noeviction")), int(found.get("maxmemory", 0))
    if policy == "noeviction":
        return
    memory = f"is limited to {_size(limit)}" if limit else "has no limit"
    cause = "When memory runs out, Redis silently deletes whole queues. Their messages wait until their leases end."
    if policy.startswith("volatile"):
        cause = "Celery's queues have no expiry, so they stay. But a broker should evict nothing."
    kind = note if not limit else warning if policy.startswith("volatile") else error
    yield kind(
        "eviction",
        f"The broker's eviction policy is {policy}, and its memory {memory}.",
        cause,
        "redis-cli CONFIG SET maxmemory-policy noeviction, and in redis.conf, or the service's parameter group. "
        "Give the relay a Redis of its own, if a cache needs the policy.",
    )


def _full(found: dict[str, Any]) -> Iterator[Finding]:
    limit, used = int(found.get("maxmemory", 0)), int(found.get("used_memory", 0))
    if limit and used >= NEARLY * limit:
        yield (error if used >= ALMOST * limit else warning)(
            "memory_low",
            f"The broker uses {_size(used)} of {_size(limit)}, {used / limit:.0%}.",
            "At its limit it refuses every task ('OOM command not allowed'): nothing is claimed until there is room.",
            "See what fills it (redis-cli --bigkeys), and raise maxmemory. The relay itself queues some "
            "thousand tasks at most, of about a kilobyte each.",
        )


def clock(site: Site) -> Results:
    """Whether this host's clock agrees with the broker's."""
    with site.broker.producer() as producer, producer.channel.conn_or_acquire() as client:

        def ask() -> float:
            whole, millionths = client.time()
            return float(whole) + float(millionths) / 1e6

        yield compared("broker", ask)


def _size(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"
