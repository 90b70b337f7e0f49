"""What the order of each key costs, beside messages without a key in the same run.

- drain: a backlog without keys, as many messages over 10,000 keys of uneven size, over 100 keys, and a fifth as many of
  a single key. Nothing may be missing or out of order;
- fair: how late a message of a quiet key arrives while the relay drains a backlog of 10,000 keys, or of one;
- claim: 2,000 messages through the store, from backlogs of 10,000 keys and of a million;
- webhook: 30 keys to a webhook that answers in 5 ms, but one time in fifty in 1.5 s;
- write: a transaction of one message, and one of many, with a key and without.

Two solo publish workers; embedded servers with 512 MB of `shared_buffers`.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from statistics import median
from typing import Any

import click
from sqlalchemy import text
from sqlalchemy.orm import Session

from bench import storage
from bench.relay import WORKERS, Bench, running
from bench.report import Figures, Say, bench, spread
from bench.simulate import claimed
from bench.slow_webhook import SlowWebhook
from outbox_tasks.local.processes import Child
from outbox_tasks.outbox import Outbox
from outbox_tasks.relay.store import Store

NONE, HOT, SKEWED = "NULL", "'hot'", "'order:' || floor(10000 * random() ^ 3)"
"""The keys of a backlog, as SQL."""
KINDS = {"without keys": NONE, "10,000 keys": SKEWED, "100 keys": "'order:' || floor(100 * random())", "one key": HOT}
BUSY = {"10,000 busy keys": "'order:' || n % 10000", "one busy key": HOT}
BACKLOGS = {
    "10,000 due, 10,000 keys": (10_000, "'order:' || floor(10000 * random())"),
    "100,000 due, 10,000 keys": (100_000, "'order:' || floor(10000 * random())"),
    "1,000,000 due, 1,000,000 keys": (1_000_000, "'order:' || floor(1000000 * random())"),
}

KEYS = 30
BATCH, CLAIMS, SINGLE, WARM = 2_000, 15, 1_000, 100
QUIET_RATE, QUIET_SECONDS = 10, 5
READ = 10_000
"""Entries of the destination's stream to read at a time."""

GONE = """WITH gone AS (DELETE FROM outbox_leases RETURNING destination, keys)
SELECT outbox_free(destination, keys) FROM gone"""

Rows = dict[str, dict[str, Any]]


class Keyed(Bench):
    """A backlog with keys."""

    patience = 600.0

    def empty(self) -> None:
        """Clear up: one phase must not slow down the next."""
        self.stream.delete("bench")
        storage.clear(self.settings)

    def delivered(self, workers: list[Child], count: int, key: str) -> dict[str, float]:
        """The rate at which a committed backlog is delivered, and how much of it has not arrived in order."""
        self.empty()
        self.write(count, key)
        self.nudge()
        figures = self.measure(workers, count, lambda: self.stream.xlen("bench") >= count)
        self.wait_for(self.is_settled, "everything is settled")
        return {**figures, "wrong": self._wrong(count)}

    def _wrong(self, count: int) -> int:
        """How many messages are missing, or came behind a later one of their key."""
        last: dict[bytes, int] = defaultdict(int)
        seen, wrong, start = set(), 0, "-"
        while entries := self._entries(start):
            for _, fields in entries:
                number, key = json.loads(fields[b"data"])["id"], fields.get(b"ce_partitionkey")
                if key is not None and number not in seen:
                    wrong += number < last[key]
                    last[key] = max(number, last[key])
                seen.add(number)
            start = "(" + entries[-1][0].decode()
        return wrong + count - len(seen)

    def _entries(self, start: str) -> Any:
        return self.stream.xrange("bench", min=start, count=READ)

    def late(self, count: int, key: str) -> dict[str, Any]:
        """Milliseconds from the commit of messages of quiet keys to the stream, while a backlog is drained."""
        self.empty()
        self.write(count, key)
        self.nudge()
        committed: dict[bytes, float] = {}
        outbox = Outbox(self.settings)
        began = time.perf_counter()
        for number in range(QUIET_RATE * QUIET_SECONDS):
            time.sleep(max(0.0, began + number / QUIET_RATE - time.perf_counter()))
            with Session(self.engine) as session, session.begin():
                outbox.publish(session, "order.created", {}, key=f"quiet:{number}")
            committed[b"quiet:%d" % number] = time.time() * 1000
        left = count + len(committed) - self.stream.xlen("bench")
        self.wait_for(self.is_settled, "everything is settled")
        arrived: dict[bytes, int] = {}
        start = "-"
        while entries := self._entries(start):
            arrived |= {fields[b"ce_partitionkey"]: int(entry.split(b"-")[0]) for entry, fields in entries}
            start = "(" + entries[-1][0].decode()
        taken = [max(0.0, arrived[quiet] + 1 - at) for quiet, at in committed.items()]
        return {"p50 ms": round(median(taken)), "latest ms": round(max(taken)), "backlog at the end": max(0, left)}

    def claim(self, backlog: int, key: str) -> dict[str, Any]:
        """Claims from a backlog of constant length: what was claimed goes, and as much is written."""
        self.empty()
        taken, counts = [], []
        self.write(backlog, key)
        store = Store.connect(self.settings)
        for turn in range(CLAIMS + 1):
            started = time.perf_counter()
            count = sum(len(bundle.tickets) for bundle in claimed(store, {"bench": BATCH}))
            if turn:  # the first one warms up
                taken.append((time.perf_counter() - started) * 1000)
                counts.append(count)
            with self.engine.begin() as connection:
                connection.execute(text(GONE))
            self.write(count, key)
        store.close()
        return {
            "ms": round(median(taken), 1),
            "rounds": [round(one, 1) for one in taken],
            "rows": sum(counts) // CLAIMS,
        }

    def webhook(self, count: int, concurrency: int) -> dict[str, Any]:
        """Deliver most of a backlog to a slow webhook; the rest only keeps all keys busy."""
        self.empty()
        server = SlowWebhook()
        self.environment["OUTBOX_DESTINATIONS"] = json.dumps(
            {"bench": {"url": f"{server.url}&outbox_concurrency={concurrency}"}}
        )
        self.write(count, f"'order:' || n % {KEYS}")
        with self.relay(bundle_size=100) as workers:
            self.nudge()
            self.wait_for(lambda: server.count > count // 20, "it has begun")
            before, spent = server.count, server.spent
            most = count * 17 // 20 - before
            figures = self.measure(workers, most, lambda: server.count >= before + most)
            mean = (server.spent - spent) / (server.count - before)
        server.close()
        if server.wrong:
            raise click.ClickException(f"out of order, or twice: {server.wrong}")
        ideal = min(KEYS, WORKERS * concurrency) / mean
        rate = figures["per_second"]
        return {
            "messages/s": rate, "ideal": round(ideal), "÷ ideal": round(rate / ideal, 2),
            "CPU µs each": figures["cpu_us"],
        }  # fmt: skip

    def single(self) -> dict[str, Any]:
        """Median microseconds of a transaction of one message. The ways take turns."""
        statements = {name: storage.written(key=key).replace("{schema}", "public") for name, key in WAYS.items()}
        taken: dict[str, list[float]] = {name: [] for name in WAYS}
        self.empty()
        with self.engine.connect() as connection:
            for turn in range(SINGLE + WARM):
                for name, statement in statements.items():
                    started = time.perf_counter()
                    connection.execute(text(statement), {"count": 1})
                    connection.commit()
                    if turn >= WARM:
                        taken[name].append((time.perf_counter() - started) * 1e6)
        return {name: round(median(times)) for name, times in taken.items()}

    def bulk(self, count: int) -> dict[str, Any]:
        """Seconds of one transaction of many messages, the median of three. The ways take turns."""
        taken: dict[str, list[float]] = defaultdict(list)
        for _ in range(3):
            for name, key in WAYS.items():
                self.empty()
                started = time.perf_counter()
                self.write(count, key)
                taken[name].append(time.perf_counter() - started)
        return {name: round(median(times), 2) for name, times in taken.items()}


WAYS = {"without key": NONE, "with key": SKEWED}


def drained(run: Keyed, workers: list[Child], messages: int, rounds: int, say: Say) -> Rows:
    """Each kind in each round. Raises if a message is missing, or out of order."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    for turn in range(rounds):
        for name, key in KINDS.items():
            say(f"round {turn + 1} of {rounds}: drain, {name}")
            found[name].append(run.delivered(workers, messages // 5 if key == HOT else messages, key))
    if wrong := {name: each for name, each in found.items() if any(one["wrong"] for one in each)}:
        raise click.ClickException(f"missing, or out of order: {wrong}")
    without = [one["per_second"] for one in found["without keys"]]
    return {
        name: {
            "messages/s": round(median(one["per_second"] for one in each)),
            "rounds": [round(one["per_second"]) for one in each],
            "CPU µs each": round(median(one["cpu_us"] for one in each)),
            "÷ without keys": spread([one["per_second"] / base for one, base in zip(each, without, strict=True)])[
                "median"
            ],
            "ratios": spread([one["per_second"] / base for one, base in zip(each, without, strict=True)])["rounds"],
        }
        for name, each in found.items()
    }


PARTS = ("drain", "fair", "webhook", "claim", "write")


@bench
@click.option("--messages", default=50_000, show_default=True, help="Of each backlog that is drained.")
@click.option("--rounds", default=3, show_default=True, help="How often each kind of backlog is drained.")
@click.option("--only", multiple=True, type=click.Choice(PARTS), help="Not all of it.")
def main(say: Say, messages: int, rounds: int, only: tuple[str, ...]) -> list[Figures]:
    """What the order of each key costs."""
    only, tables = only or PARTS, []
    with running(Keyed, shared_buffers="512MB") as run:
        if {"drain", "fair"} & set(only):
            with run.relay(bundle_size=100) as workers:
                if "drain" in only:
                    tables.append(Figures("2 publish workers", drained(run, workers, messages, rounds, say)))
                if "fair" in only:
                    lateness: Rows = {}
                    for name, key in BUSY.items():
                        say(f"quiet keys beside {name}")
                        lateness[f"beside {name}"] = run.late(2 * messages, key)
                    tables.append(Figures("commit → destination of quiet keys", lateness))
        if "webhook" in only:
            slow: Rows = {}
            for concurrency in (5, 10):
                say(f"a slow webhook, {concurrency} connections for each worker")
                slow[f"{concurrency} connections each"] = run.webhook(messages // 10, concurrency)
            tables.append(Figures(f"{KEYS} keys to a slow webhook, {WORKERS} publish workers", slow))
        if "claim" in only:
            claims: Rows = {}
            for name, (backlog, key) in BACKLOGS.items():
                say(f"claims: {name}")
                claims[name] = run.claim(min(backlog, 20 * messages), key)
            tables.append(Figures(f"claims of {BATCH:,}", claims))
        if "write" in only:
            say("writers")
            writes = {"one message, µs": run.single(), f"{2 * messages:,} messages, s": run.bulk(2 * messages)}
            tables.append(Figures("a writer's transaction", writes))
    return tables
