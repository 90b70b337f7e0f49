"""Faults of the broker, and of the connections to it."""

from __future__ import annotations

import random
from contextlib import suppress

import redis

from lab.soak.faults.kind import End, Kind, own_broker
from lab.soak.stage import Stage

DELAY = (0.01, 0.2)
"""Seconds that each packet takes longer."""


def _may_flush(stage: Stage) -> str | None:
    if stage.valkey or (stage.options.may_flush and not stage.broker_url.startswith("amqp")):
        return None
    return "the broker is not the soak's own: --flush-broker allows it"


def killed(stage: Stage, chance: random.Random) -> End:
    assert stage.valkey is not None
    stage.valkey.kill()
    return stage.valkey.start


def flushed(stage: Stage, chance: random.Random) -> None:
    with redis.Redis.from_url(stage.broker_url, socket_timeout=5) as client:
        client.flushdb()


def full(stage: Stage, chance: random.Random) -> End:
    _limit(stage.broker_url, "1")
    return lambda: _limit(stage.broker_url, "0")


def _limit(url: str, memory: str) -> None:
    with suppress(redis.ConnectionError), redis.Redis.from_url(url, socket_timeout=5) as client:
        client.config_set("maxmemory", memory)


def silent(stage: Stage, chance: random.Random) -> End:
    stage.to_broker.silence()
    return stage.to_broker.resume


def half_open(stage: Stage, chance: random.Random) -> None:
    stage.to_broker.forget()


def reset(stage: Stage, chance: random.Random) -> None:
    stage.to_broker.reset()


def slow(stage: Stage, chance: random.Random) -> End:
    stage.to_broker.delay = chance.uniform(*DELAY)

    def end() -> None:
        stage.to_broker.delay = 0.0

    return end


SERVER = "broker"

KINDS = [
    Kind("broker_killed", killed, own_broker, SERVER),
    Kind("broker_flushed", flushed, _may_flush, SERVER),
    Kind("broker_full", full, own_broker, SERVER),
    Kind("broker_silent", silent),
    Kind("broker_half_open", half_open),
    Kind("broker_reset", reset),
    Kind("broker_slow", slow),
]
