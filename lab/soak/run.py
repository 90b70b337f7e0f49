"""A run: the stage, the faults of the plan, the wait until all is delivered, and the verdict."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict

import redis
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError

from lab.soak.applications import APPLICATIONS
from lab.soak.errors import NothingArrived
from lab.soak.evidence import evidence, keep, keep_lives
from lab.soak.faults import KINDS
from lab.soak.faults.happening import Happening
from lab.soak.faults.processes import again
from lab.soak.ledger import COMMITTED, counted
from lab.soak.options import Options
from lab.soak.plan import plan
from lab.soak.result import Result
from lab.soak.stage import SINGLES, Stage, stage
from lab.soak.verdict import judge
from outbox_tasks.database.schema import tables
from outbox_tasks.local.processes import signals_as_ctrl_c

TICK_SECONDS, LOOK_SECONDS, ASK_SECONDS = 0.05, 1.0, 0.5
"""Between two looks at the processes, at the figures, and at what is left in the database."""

WARM_MESSAGES, WARM_SECONDS = 100, 180.0
"""Messages that have arrived when the faults begin, and how long they may take."""

STUCK_SECONDS = 120.0
"""Without progress for so long, beyond the leases, the rest is stuck."""

REST_SECONDS = 5.0
"""Between two faults that come alone, beyond a lease and a half in the queue."""

STACKS_SECONDS = 3.0
"""How long the workers may take to write down what their threads do."""

COUNTS = "{task.description}: {task.fields[committed]:,} committed · {task.fields[arrived]:,} arrived · \
{task.fields[faults]:,} faults"


def soak(options: Options, messages: Console) -> Result:
    """Run it, and judge."""
    options.directory.mkdir(parents=True, exist_ok=True)
    messages.print("Starting servers, relay and application …", highlight=False)
    with signals_as_ctrl_c(), stage(options) as on:
        return Run(on, messages).result()


class Run:
    """One run on a stage."""

    def __init__(self, on: Stage, messages: Console) -> None:
        self._on, self._options = on, on.options
        self._destination = redis.Redis.from_url(on.destination.url)
        self._looked = 0.0
        self._bar = Progress(
            BarColumn(bar_width=None), TextColumn(COUNTS), TimeElapsedColumn(), console=messages, expand=True
        )
        self._task = self._bar.add_task("warming up", total=None, committed=0, arrived=0, faults=0)
        reasons = {name: KINDS[name].missing(on) for name in self._options.only or KINDS}
        self._not_run = {name: reason for name, reason in reasons.items() if reason}
        lease, seconds = on.settings.send_lease, self._options.minutes * 60
        rest = 1.5 * on.settings.queue_lease + REST_SECONDS if self._options.alone else 0.0
        can = [name for name, reason in reasons.items() if not reason]
        self._plan = plan(self._options.seed, seconds, can, lease, self._options.every or lease / 3 + rest)
        (self._options.directory / "plan.json").write_text(json.dumps([asdict(one) for one in self._plan], indent=1))
        self._faults = Happening(on, self._plan, self._say, rest)

    def result(self) -> Result:
        """All of it."""
        began = time.time()
        with self._bar:
            kinds = ", ".join(one.kind for one in self._plan)
            self._say(f"The plan of seed {self._options.seed} has {len(self._plan)} faults: {kinds}.")
            self._warm_up()
            self._make_faults()
            drained = self._drain()
            self._bar.update(self._task, description="comparing")
            self._on.relay.stop()
        records = evidence(
            self._on,
            happened=self._faults.happened,
            remarks=self._on.applications.remarks,
        )
        verdict = judge(records)
        keep(records, self._options.directory)
        keep_lives(self._on, verdict)
        return Result(
            self._options, verdict, self._not_run, Counter(self._faults.missed), len(self._plan),
            round(time.time() - began, 1), round(drained, 1),
        )  # fmt: skip

    def _warm_up(self) -> None:
        for _ in range(APPLICATIONS):
            self._on.applications.start()
        deadline = time.monotonic() + WARM_SECONDS
        while self._arrived() < WARM_MESSAGES:
            if time.monotonic() > deadline:
                directory = self._options.directory / "logs"
                raise NothingArrived(count=self._arrived(), seconds=WARM_SECONDS, directory=directory)
            self._look_after()

    def _make_faults(self) -> None:
        """Until the time is over, and all faults."""
        self._bar.update(self._task, description="faults", total=len(self._plan))
        ends = time.monotonic() + self._options.minutes * 60
        try:
            while time.monotonic() < ends or not self._faults.over:
                self._faults.go_on()
                self._look_after()
        finally:
            self._faults.close()

    def _drain(self) -> float:
        """Wait until nothing is pending, or nothing moves any more. Returns the seconds that it took."""
        self._bar.update(self._task, description="draining")
        self._on.applications.stop()
        began = moved = time.monotonic()
        before: object = None
        asked = 0.0
        patience = STUCK_SECONDS + 2 * self._on.settings.queue_lease
        while time.monotonic() - moved < patience:
            self._look_after(applications=False)
            if time.monotonic() < asked + ASK_SECONDS:
                continue
            asked = time.monotonic()
            pending, arrived = self._pending(), self._arrived()
            if pending == 0:
                break
            if (pending, arrived) != before:
                before, moved = (pending, arrived), time.monotonic()
        else:
            self._ask_where_they_stand()
        return time.monotonic() - began

    def _look_after(self, *, applications: bool = True) -> None:
        """Start again what has ended, and show how far it is."""
        time.sleep(TICK_SECONDS)
        for child in self._on.relay:
            if not child.alive:
                child.end()
                again(self._on, child)
        if applications:
            self._on.applications.supervise()
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked = time.monotonic()
            happened = len(self._faults.happened)
            self._bar.update(
                self._task, completed=happened, faults=happened, arrived=self._arrived(),
                committed=counted(self._options.directory, COMMITTED),
            )  # fmt: skip

    def _ask_where_they_stand(self) -> None:
        """Let each worker write into its log what all its threads are doing."""
        for child in self._on.relay:
            if child.name != "beat":
                child.send_signal(signal.SIGUSR1)
        time.sleep(STACKS_SECONDS)

    def _arrived(self) -> int:
        return sum(int(self._destination.xlen(stream)) for stream in SINGLES)

    def _pending(self) -> int | None:
        """How many messages are to be delivered; None: the database does not say."""
        m = tables(self._on.settings.database_schema).messages
        with suppress(SQLAlchemyError), self._on.engine.connect() as connection:
            return connection.scalar(select(func.count()).select_from(m).where(m.c.place != "dead"))
        return None

    def _say(self, text: str) -> None:
        self._bar.console.print(text, highlight=False)
