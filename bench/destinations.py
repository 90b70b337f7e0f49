"""Messages a second and CPU at each destination, in bundles and one by one.

The destinations are those of the contract tests, one after the other, with the servers that those run. A server shares
the machine with the bench, and some are stand-ins (moto for Amazon, Azurite, librdkafka's mock of Kafka, servers in
Python for Service Bus, Pub/Sub, webhooks and gRPC), so the rate is that of both ends together, and can be the server's.
The CPU is that of the sending process alone, all of its threads. Ratios are to redis+stream in the same run.

Each message is new, with an id and a key of its own and 200 bytes of JSON; one that is not `sent` ends the row.
Messages are made before the clock starts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from math import nan
from statistics import median, quantiles

import click

from bench.report import Figures, Say, bench
from outbox_tasks.destinations import Publisher
from outbox_tasks.model import LeasedMessage, Outcome, uuid7
from tests.contract.counterparts import Counterpart, every
from tests.contract.messages import loaded, message

YARDSTICK = "redis+stream"
KINDS = {kind.name: kind for kind in sorted(every(), key=lambda kind: kind.name != YARDSTICK)}
WARM_SECONDS = 0.4
FAILED = "failed: "


@dataclass(frozen=True)
class Cost:
    """The cost of sending in bundles of one size: microseconds of a message, milliseconds of a bundle."""

    per_second: float
    wall_us: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


Costs = dict[int, Cost]
"""By the size of the bundle."""


def measured(kind: type[Counterpart], sizes: list[int], seconds: float) -> Costs | str:
    """The costs at a destination, or why there are none."""
    if reason := kind.missing():
        return f"not here: {reason}"
    try:
        with running(kind()) as server, closing(loaded(server.new_place())) as publisher:
            return {size: cost(publisher, size, seconds) for size in sizes}
    except Exception as error:
        return f"{FAILED}{str(error) or repr(error)}"


@contextmanager
def running(server: Counterpart) -> Iterator[Counterpart]:
    """The server, until the end of the block."""
    try:
        server.start()
        yield server
    finally:
        server.end()


def cost(publisher: Publisher, size: int, seconds: float) -> Cost:
    """The cost in bundles of this size."""
    spend(publisher, size, WARM_SECONDS)
    walls, cpu = spend(publisher, size, seconds)
    messages = size * len(walls)
    return Cost(
        per_second=messages / sum(walls),
        wall_us=sum(walls) / messages * 1e6,
        cpu_us=cpu / messages * 1e6,
        p50_ms=median(walls) * 1e3,
        p99_ms=quantiles(walls, n=100, method="inclusive")[98] * 1e3,
    )


def spend(publisher: Publisher, size: int, seconds: float) -> tuple[list[float], float]:
    """Send for this long. Returns the seconds of each bundle, and the CPU seconds of all."""
    walls: list[float] = []
    cpu = spent = 0.0
    numbers = count()
    while spent < seconds or len(walls) < 2:
        bundle = [order(next(numbers)) for _ in range(size)]
        started, burnt = time.perf_counter(), time.process_time()
        outcomes = publisher.publish(bundle)
        walls.append(time.perf_counter() - started)
        cpu += time.process_time() - burnt
        spent += walls[-1]
        for outcome in outcomes:
            if outcome != Outcome.sent():
                raise RuntimeError(f"a message was not sent: {outcome.result} {outcome.code} {outcome.error}")
    return walls, cpu


def order(number: int) -> LeasedMessage:
    """A message as an application writes it."""
    payload = {"id": number, "customer": "Zoe", "items": [{"sku": "apple", "count": 3}], "note": ""}
    short = json.dumps(payload)
    payload["note"] = "x" * (200 - len(short))
    return message(id=str(uuid7()), key=f"order:{number}", payload=json.dumps(payload).encode())


def ratios(found: Costs, yardstick: Costs | str) -> dict[int, tuple[float, float]]:
    """Time and CPU as multiples of the yardstick's, for each size; empty without a yardstick."""
    if isinstance(yardstick, str):
        return {}
    return {
        size: (one.wall_us / yardstick[size].wall_us, one.cpu_us / yardstick[size].cpu_us)
        for size, one in found.items()
    }


def rows(found: dict[str, Costs | str], size: int) -> dict[str, dict[str, object]]:
    """The rows of the table for bundles of one size."""
    result: dict[str, dict[str, object]] = {}
    for name, costs in found.items():
        if isinstance(costs, str):
            result[name] = {"messages/s": costs}
            continue
        one = costs[size]
        time_ratio, cpu_ratio = ratios(costs, found[YARDSTICK]).get(size, (nan, nan))
        result[name] = {
            "messages/s": round(one.per_second), "µs": round(one.wall_us), "× time": round(time_ratio, 1),
            "CPU µs": round(one.cpu_us), "× CPU": round(cpu_ratio, 1), "p50 ms": round(one.p50_ms, 2),
            "p99 ms": round(one.p99_ms, 2),
        }  # fmt: skip
    return result


@bench
@click.argument("names", nargs=-1, metavar="[NAME]…")
@click.option("--seconds", default=2.0, show_default=True, help="How long to send at each destination, in each size.")
@click.option("--bundle", default=100, show_default=True, type=click.IntRange(1), help="Messages of a bundle.")
def main(say: Say, names: tuple[str, ...], seconds: float, bundle: int) -> list[Figures]:
    """What sending costs at each destination, or at those named and the yardstick."""
    if unknown := set(names) - KINDS.keys():
        raise click.BadParameter(f"{', '.join(sorted(unknown))}; there are {', '.join(KINDS)}", param_hint="NAME")
    sizes = list(dict.fromkeys([bundle, 1]))
    found: dict[str, Costs | str] = {}
    for name, kind in KINDS.items():
        if not names or name in names or name == YARDSTICK:
            say(name)
            found[name] = measured(kind, sizes, seconds)
    if failed := {name: costs for name, costs in found.items() if isinstance(costs, str) and costs.startswith(FAILED)}:
        raise click.ClickException(str(failed))
    note = f"µs and CPU µs are those of a message, × is how many times those of {YARDSTICK}"
    titles = {size: f"in bundles of {size}" if size > 1 else "one by one" for size in sizes}
    return [Figures(titles[size], rows(found, size), note) for size in sizes]
