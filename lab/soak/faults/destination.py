"""Faults of the destination. Its records are never hurt."""

from __future__ import annotations

import random

import redis

from lab.soak.faults.kind import End, Kind
from lab.soak.stage import Stage


def slow(stage: Stage, chance: random.Random) -> End:
    """At times slower than a send may be."""
    stage.to_destination.delay = chance.uniform(0.02, 0.6) * stage.settings.send_timeout

    def end() -> None:
        stage.to_destination.delay = 0.0

    return end


def silent(stage: Stage, chance: random.Random) -> End:
    stage.to_destination.silence()
    return stage.to_destination.resume


def away(stage: Stage, chance: random.Random) -> End:
    stage.to_destination.refuses = True
    stage.to_destination.reset()

    def end() -> None:
        stage.to_destination.refuses = False

    return end


def answers_lost(stage: Stage, chance: random.Random) -> End:
    stage.to_destination.mute()
    return stage.to_destination.reset


def refuses(stage: Stage, chance: random.Random) -> End:
    _limit(stage, "1")
    return lambda: _limit(stage, "0")


def _limit(stage: Stage, memory: str) -> None:
    with redis.Redis.from_url(stage.destination.url) as client:
        client.config_set("maxmemory", memory)


KINDS = [
    Kind("destination_slow", slow),
    Kind("destination_silent", silent),
    Kind("destination_away", away),
    Kind("destination_answers_lost", answers_lost),
    Kind("destination_refuses", refuses),
]
