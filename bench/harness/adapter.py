"""One replica in the harness: a producer, a relay of its own (claim, publish, beat), and a consumer at the destination.

A job is a message: committed by the producer with `Outbox.publish_many`, delivered to a Redis Stream by the relay, and
done when a consumer of that stream has worked on it. Replicas share the tables, the broker and the stream. The producer
keeps to the rate in the harness's control file, which a phase of high load raises.
https://github.com/hardbyte/postgresql-job-queue-benchmarking/blob/main/CONTRIBUTING_ADAPTERS.md
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from statistics import quantiles
from typing import Any

import redis
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outbox_tasks import Message, Outbox, Settings, __version__
from outbox_tasks.database.connection import engine_url, migrating
from outbox_tasks.database.schema import VERSION
from outbox_tasks.local import commands
from outbox_tasks.local.processes import Child, Group
from outbox_tasks.migrations import upgrade

MANIFEST = json.loads(Path(__file__).with_name("adapter.json").read_text())
SYSTEM = MANIFEST["system"]

STREAM, CONSUMERS = "jobs", "consumers"
PUBLISHERS = 2
"""Publish processes of a replica."""

DEPTH = "SELECT count(*) FROM outbox_at_work WHERE place <> 'dead'"
WINDOW = 30.0
"""Seconds of latencies that a percentile covers."""


def number(name: str, default: int) -> int:
    """A variable of the harness."""
    return int(os.environ.get(name) or default)


INSTANCE = number("BENCH_INSTANCE_ID", 0)


def emit(**record: Any) -> None:
    """A line for the harness."""
    print(json.dumps({**record, "system": SYSTEM, "instance_id": INSTANCE}), flush=True)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Replica:
    """What the threads share."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        self.settings, self.stop = settings, stop
        self.engine = create_engine(engine_url(str(settings.database_url)), pool_size=2)
        self.enqueued = self.completed = self.depth = 0
        self.rate = 0.0
        self.latencies: deque[tuple[float, float]] = deque(maxlen=32_768)

    def produce(self) -> None:
        """Commit messages at the harness's rate, or up to a depth. What can't be committed is not offered again."""
        outbox, payload = Outbox(self.settings), "x" * number("JOB_PAYLOAD_BYTES", 256)
        pause, most = number("PRODUCER_BATCH_MS", 25) / 1000, number("PRODUCER_BATCH_MAX", 128)
        to_depth = os.environ.get("PRODUCER_MODE") == "depth-target"
        credit, last = 0.0, time.monotonic()
        while not self.stop.wait(pause):
            moment = time.monotonic()
            self.rate = 0.0 if to_depth else wanted_rate()
            credit, last = credit % 1 + self.rate * (moment - last), moment
            count = number("TARGET_DEPTH", 1000) - self.depth if to_depth else int(credit)
            while count > 0:
                some = min(count, most)
                count -= some
                try:
                    with Session(self.engine) as session, session.begin():
                        at = time.time()
                        jobs = [Message("job", {"at": at, "padding": payload}) for _ in range(some)]
                        outbox.publish_many(session, jobs)
                except Exception as error:
                    print(f"not committed: {error}", file=sys.stderr)
                    break
                self.enqueued += some
                self.depth += some if to_depth else 0

    def consume(self) -> None:
        """Work on what arrives: `WORKER_COUNT` jobs at once, each for `JOB_WORK_MS`."""
        url, _, _ = self.settings.destinations["bench"].url.replace("redis+stream", "redis").rpartition("/")
        stream = redis.Redis.from_url(url)
        with suppress(redis.ResponseError):  # another replica has made it
            stream.xgroup_create(STREAM, CONSUMERS, id="0", mkstream=True)
        workers, work = number("WORKER_COUNT", 32), number("JOB_WORK_MS", 1) / 1000
        while not self.stop.is_set():
            found: Any = stream.xreadgroup(
                CONSUMERS, f"replica{INSTANCE}", {STREAM: ">"}, count=workers, block=200, noack=True
            )
            for _, entries in found or ():
                moment = time.time()
                for _, fields in entries:
                    age = moment - json.loads(fields[b"data"])["at"]
                    self.latencies.append((time.monotonic(), max(0.0, age * 1000)))
                time.sleep(work)
                self.completed += len(entries)

    def look(self) -> None:
        """How many messages are not yet delivered. Only one replica needs to know."""
        while INSTANCE == 0 and not self.stop.wait(0.2):
            with suppress(Exception), self.engine.connect() as connection:
                self.depth = int(connection.scalar(text(DEPTH)))

    def sample(self) -> None:
        """Tell the harness, at moments that all systems share."""
        every = number("SAMPLE_EVERY_S", 5)
        enqueued = completed = 0
        last = time.monotonic()
        while not self.stop.wait(every - time.time() % every):
            moment = time.monotonic()
            seconds, last = max(0.001, moment - last), moment
            told = {
                "enqueue_rate": (self.enqueued - enqueued) / seconds,
                "completion_rate": (self.completed - completed) / seconds,
            }
            enqueued, completed = self.enqueued, self.completed
            recent = [ms for at, ms in list(self.latencies) if at > moment - WINDOW]
            cuts = quantiles(recent, n=100) if len(recent) > 1 else [0.0] * 99
            for percent in (50, 95, 99):
                told[f"claim_p{percent}_ms"] = told[f"end_to_end_p{percent}_ms"] = cuts[percent - 1]
            if INSTANCE == 0:
                told |= {"queue_depth": self.depth, "producer_target_rate": self.rate}
            at = now()
            for metric, value in told.items():
                window = every if metric.endswith("_rate") else WINDOW if metric.endswith("_ms") else 0
                emit(
                    t=at,
                    kind="adapter",
                    subject_kind="adapter",
                    subject="",
                    metric=metric,
                    value=value,
                    window_s=window,
                )


def wanted_rate() -> float:
    """Messages a second: what the control file says, else the variable."""
    with suppress(OSError, ValueError, KeyError):
        return float(Path(os.environ["PRODUCER_RATE_CONTROL_FILE"]).read_text())
    return float(number("PRODUCER_RATE", 800))


def start_relay(group: Group, environment: dict[str, str]) -> list[Child]:
    """The workers and beat of this replica."""

    def say(name: str, line: str) -> None:
        print(f"{name}: {line}", file=sys.stderr, flush=True)

    argvs = {
        "claim": commands.claim_worker_argv(f"claim{INSTANCE}", loglevel="WARNING"),
        "publish": commands.publish_worker_argv(INSTANCE, PUBLISHERS, loglevel="WARNING"),
        "beat": commands.beat_argv(loglevel="WARNING"),
    }
    return [
        group.start(name, [word for word in argv if word != "-E"], env=environment, on_line=say, stop_timeout=3)
        for name, argv in argvs.items()
    ]


def main() -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    url = os.environ["DATABASE_URL"].replace("postgres://", "postgresql://")
    destinations = {"bench": {"url": f"{os.environ['BENCH_STREAM_URL']}/{STREAM}"}}
    settings = Settings(database_url=url, broker_url=os.environ["OUTBOX_BROKER_URL"], destinations=destinations)
    environment = {"OUTBOX_DATABASE_URL": url, "OUTBOX_DESTINATIONS": json.dumps(destinations)}
    with migrating(settings) as connection:
        upgrade(connection)
    replica = Replica(settings, stop)
    told = {name: MANIFEST[name] for name in ("db_name", "event_tables", "event_indexes", "extensions")}
    with Group() as group:
        children = start_relay(group, environment)
        emit(kind="descriptor", version=__version__, schema_version=str(VERSION), started_at=now(), **told)
        threads = [
            threading.Thread(target=each, daemon=True)
            for each in (replica.produce, replica.consume, replica.look, replica.sample)
        ]
        for thread in threads:
            thread.start()
        while not stop.wait(0.5):
            if gone := [child.name for child in children if not child.alive]:
                print(f"ended by itself: {', '.join(gone)}", file=sys.stderr)
                sys.exit(1)
        for child in children:
            child.ask_to_stop()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
