"""Celery's broker: whether it answers, and whether it keeps its queues."""

from __future__ import annotations

from typing import Any

from outbox_tasks.broker import stamp
from outbox_tasks.broker.places import joined
from outbox_tasks.database.activity import CROSSED
from outbox_tasks.database.connection import SLOW_TRIP_SECONDS
from outbox_tasks.errors import CrossedWires
from outbox_tasks.operating.problems.answers import Silence
from outbox_tasks.operating.problems.problem import Problem, error, note, warning
from outbox_tasks.operating.problems.site import Problems, Site
from outbox_tasks.text import redacted, span


def reach(site: Site) -> Problems:
    """Whether the broker answers. Without that, no other check of it can run."""
    answer = site.broker_answer
    if answer is None:
        yield note(
            "broker_unknown",
            "OUTBOX_BROKER_URL is not set: the broker was not looked at.",
            "If an application's workers run the relay, they use the application's broker.",
            "Set OUTBOX_BROKER_URL; or ask through the application: celery -A <your app> outbox doctor",
        )
        return
    url = redacted(joined(site.connections.app.conf.broker_write_url))
    if isinstance(answer, Silence):
        yield error(
            "broker_away",
            f"The broker {url} can't be reached: {answer.reason}.",
            "Nothing is claimed or sent until it is back. Nothing is lost: the database has all messages.",
            "Start it, or correct OUTBOX_BROKER_URL. See that its firewall and password let the relay in, and that its "
            "certificate is trusted here (ssl_ca_certs in the URL).",
        )
        return
    site.reached.add("broker")
    if answer.info is not None:
        site.reached.add("redis")
    if answer.seconds >= SLOW_TRIP_SECONDS:
        yield warning(
            "broker_slow",
            f"The broker {url} is slow: to say the length of a queue takes {answer.seconds:.1f} s.",
            "Each claim and each single takes several round trips. Messages arrive late.",
            "See how busy it is (redis-cli --latency, INFO commandstats; rabbitmqctl list_queues), and the network.",
        )


def crossed(site: Site) -> Problems:
    """Whether the broker belongs to another outbox: by its stamp, or as the relay's workers found it."""
    if "broker" in site.reached and "tables" in site.reached:
        outbox = site.store.identity
        with site.broker.producer() as producer:
            owner = stamp.look(producer, outbox)
        try:
            site.broker.check_owner(owner, outbox)
        except CrossedWires as wires:
            yield _crossed(wires.broker, wires.owner, f"This is {outbox}.")
            return
    if (met := site.heartbeats.last.get(CROSSED)) is not None:
        met_when = f"A relay of this outbox found its stamp there {span(met.age)} ago."
        yield _crossed(met.facts.get("broker"), met.facts.get("owner"), met_when)


def _crossed(broker: Any, owner: Any, more: str) -> Problem:
    return error(
        "crossed_wires",
        f"The broker {broker} belongs to another outbox: {owner}. {more}",
        "Two relays on one broker take each other's tasks: messages wait until their leases end. So a relay whose "
        "outbox is not the broker's does not start, and claims nothing.",
        "Give each a broker of its own (OUTBOX_BROKER_URL: another number of Redis, or another virtual host), or "
        "correct OUTBOX_DATABASE_URL.\n"
        "The same outbox, moved here (docs/operate.md, One broker, one outbox): outbox-tasks init --adopt-broker",
    )


def redis(site: Site) -> Problems:
    """Whether the Redis keeps its queues."""
    info = site.broker_facts.info or {}
    yield from (*_evicts(info), *_full(info))


def _evicts(info: dict[str, Any]) -> Problems:
    policy, limit = str(info.get("maxmemory_policy", "noeviction")), int(info.get("maxmemory", 0))
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


def _full(info: dict[str, Any]) -> Problems:
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if limit and used >= 0.8 * limit:
        yield (error if used >= 0.95 * limit else warning)(
            "memory_low",
            f"The broker uses {_size(used)} of {_size(limit)}, {used / limit:.0%}.",
            "At its limit it refuses every task ('OOM command not allowed'): nothing is claimed until there is room.",
            "See what fills it (redis-cli --bigkeys), and raise maxmemory. The relay itself queues some "
            "thousand tasks at most, of about a kilobyte each.",
        )


def _size(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"
