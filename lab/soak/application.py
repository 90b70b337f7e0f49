"""The soak's application, a process of its own: it commits and rolls back in all the ways there are, until SIGTERM.

Somebody kills it now and then, in the middle of its transactions too.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import create_engine, insert, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from lab.soak.ledger import Notes, table
from outbox_tasks.database.engine import engine_url
from outbox_tasks.database.schema import qualified
from outbox_tasks.model import Message, Priority
from outbox_tasks.outbox import Outbox
from outbox_tasks.settings import Settings

PRIORITIES: list[Priority] = ["high", "normal", "low"]

KEYS, SKEW, MESSAGES_AT_MOST, THREADS = 200, 1.5, 40, 4
"""Keys of a destination, how much more some are used than others, messages of the largest transaction, and transactions
at once. No key gets more than what a destination can take singly, one after the other."""

DELAY_SECONDS, HELD_SECONDS = (0.5, 3.0), (0.5, 3.0)
"""Seconds for which a message is held back, and for which a slow transaction stays open."""

# No publisher takes headers that are not text. A writer in another language may do this by mistake.
HOPELESS = '{"priority": 1}'
EVENT = "soak.written"

TROUBLE = (DBAPIError, PoolTimeout)

logger = logging.getLogger("soak")


class Transaction:
    """One transaction of the application, with what it has written."""

    def __init__(self, application: Application, way: str) -> None:
        self._application, self._way = application, way
        self.session = Session(application.engine)
        self.session.begin()
        self.ids: list[str] = []
        self.over = False

    def publish(self, *messages: Message) -> list[str]:
        """Write messages, and that they were written."""
        outbox = self._application.outbox
        if len(messages) == 1:
            [m] = messages
            made = [
                outbox.publish(
                    self.session, m.event_type, m.payload, key=m.key, to=m.to, delay=m.delay, id=m.id,
                    priority=m.priority,
                )
            ]  # fmt: skip
        else:
            made = outbox.publish_many(self.session, messages)
        return self._note([{"id": id, "delay": message.delay or 0} for id, message in zip(made, messages, strict=True)])

    def by_sql(self, destination: str, *, key: str | None = None, headers: str = "{}") -> list[str]:
        """Write a message as a writer in another language does."""
        function = qualified(self._application.schema, "outbox_publish")
        call = (
            f"SELECT {function}(:event, CAST('{{}}' AS jsonb), key => :key, destination => :to, "
            "headers => CAST(:headers AS jsonb))"
        )
        values = {"event": EVENT, "key": key, "to": destination, "headers": headers}
        made = self.session.scalar(text(call), values)
        return self._note([{"id": made, "hopeless": headers == HOPELESS}])

    def _note(self, rows: list[dict[str, Any]]) -> list[str]:
        self.session.execute(insert(self._application.table), [{**row, "way": self._way} for row in rows])
        ids = [str(row["id"]) for row in rows]
        self.ids += ids
        return ids

    def commit(self) -> None:
        self.session.commit()
        self._application.notes.committed(self.ids)

    def withdraw(self) -> None:
        """Roll back."""
        self.over = True
        self._application.notes.withdrawn(self.ids)
        self.session.rollback()


class Application:
    """What one process of it does, in several threads."""

    def __init__(self, settings: Settings, notes: Notes, rate: float) -> None:
        self.schema = settings.database_schema
        self.outbox, self.notes, self.table = Outbox(settings), notes, table(self.schema)
        self.engine = create_engine(
            engine_url(settings.database_url or ""),
            pool_pre_ping=True,
            pool_size=2 * THREADS,
            connect_args={"connect_timeout": 5, "application_name": "soak application"},
        )
        self.enough = threading.Event()
        self._destinations = sorted(settings.destinations)
        self._seconds = THREADS / rate
        """That a thread takes for a message on average."""

    def work(self, seed: int) -> None:
        """One thread: one transaction after the other."""
        chance = random.Random(seed)
        ways, weights = zip(*WAYS.items(), strict=True)
        while not self.enough.is_set():
            [way] = chance.choices(ways, weights)
            count = 0
            try:
                count = way(self, chance)
            except TROUBLE as error:
                logger.info("%s: %s", way.__name__, str(error).partition("\n")[0])
                time.sleep(0.1)
            self.enough.wait(max(1, count) * self._seconds * chance.uniform(0.5, 1.5))

    @contextmanager
    def transaction(self, way: str) -> Iterator[Transaction]:
        """Commits at the end, unless it was withdrawn. Nobody knows what became of a commit that raises."""
        made = Transaction(self, way)
        try:
            yield made
            if not made.over:
                made.commit()
        finally:
            made.session.close()

    def to(self, chance: random.Random) -> str:
        return chance.choice(self._destinations)

    def message(self, chance: random.Random, *, keyed: bool | None = None) -> Message:
        """A message with a key or without; a few keys have most of them."""
        if keyed if keyed is not None else chance.random() < 0.5:
            return Message(EVENT, {}, key=f"key:{int(KEYS * chance.random() ** SKEW)}", to=self.to(chance))
        return Message(EVENT, {}, to=self.to(chance))


def one(application: Application, chance: random.Random) -> int:
    with application.transaction("one") as t:
        return len(t.publish(application.message(chance, keyed=False)))


def with_key(application: Application, chance: random.Random) -> int:
    with application.transaction("with a key") as t:
        message = application.message(chance, keyed=True)
        return sum(len(t.publish(message)) for _ in range(chance.randint(1, 3)))


def many(application: Application, chance: random.Random) -> int:
    with application.transaction("many") as t:
        return len(t.publish(*(application.message(chance) for _ in range(chance.randint(2, MESSAGES_AT_MOST)))))


def later(application: Application, chance: random.Random) -> int:
    with application.transaction("later") as t:
        message = application.message(chance, keyed=False)
        return len(t.publish(replace(message, delay=chance.uniform(*DELAY_SECONDS))))


def with_priority(application: Application, chance: random.Random) -> int:
    with application.transaction("with a priority") as t:
        to, priorities = application.to(chance), chance.choices(PRIORITIES, k=9)
        return len(t.publish(*(Message(EVENT, {}, to=to, priority=priority) for priority in priorities)))


def savepoint(application: Application, chance: random.Random) -> int:
    with application.transaction("around a savepoint") as t:
        t.publish(application.message(chance))
        nested = t.session.begin_nested()
        withdrawn = t.publish(application.message(chance), application.message(chance))
        application.notes.withdrawn(withdrawn)
        nested.rollback()
        t.ids = t.ids[: -len(withdrawn)]
        t.publish(application.message(chance))
        return len(t.ids)


def overlapping(application: Application, chance: random.Random) -> int:
    """Two transactions write one key. The later one commits first; sometimes the earlier one is rolled back."""
    message = application.message(chance, keyed=True)
    with application.transaction("overlapping") as first:
        first.publish(message)
        with application.transaction("overlapping") as second:
            second.publish(message, message)
        time.sleep(chance.uniform(0.0, 0.3))
        if chance.random() < 0.3:
            first.withdraw()
        return 3


def by_sql(application: Application, chance: random.Random) -> int:
    with application.transaction("by SQL") as t:
        message = application.message(chance)
        return len(t.by_sql(application.to(chance), key=message.key))


def rolled_back(application: Application, chance: random.Random) -> int:
    with application.transaction("rolled back") as t:
        t.publish(*(application.message(chance) for _ in range(chance.randint(2, 10))))
        t.withdraw()
        return len(t.ids)


def slow(application: Application, chance: random.Random) -> int:
    with application.transaction("slow") as t:
        t.publish(application.message(chance))
        application.enough.wait(chance.uniform(*HELD_SECONDS))
        t.publish(application.message(chance))
        return 2


def hung_up(application: Application, chance: random.Random) -> int:
    """The connection ends in the middle of the transaction."""
    t = Transaction(application, "hung up")
    t.publish(application.message(chance), application.message(chance))
    application.notes.withdrawn(t.ids)
    t.session.connection().invalidate()
    t.session.close()
    return 2


def twice(application: Application, chance: random.Random) -> int:
    """The same message once more, as an application does that tries again."""
    message = Message(EVENT, {}, to=application.to(chance), id=uuid4())
    with application.transaction("twice") as t:
        t.publish(message)
        application.outbox.publish(t.session, EVENT, {}, to=message.to, id=message.id)
        return 1


def hopeless(application: Application, chance: random.Random) -> int:
    with application.transaction("hopeless") as t:
        return len(t.by_sql(application.to(chance), headers=HOPELESS))


WAYS: dict[Callable[[Application, random.Random], int], int] = {
    one: 20, with_key: 15, many: 20, later: 8, with_priority: 5, savepoint: 7, overlapping: 7, by_sql: 7,
    rolled_back: 7, slow: 3, hung_up: 2, twice: 3, hopeless: 1,
}  # fmt: skip
"""What it does, and how often."""


def main(seed: int, directory: Path, rate: float) -> None:
    """Work until SIGTERM. An error that is not the database's ends the process: that is a finding."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    application = Application(Settings(), Notes(directory), rate)
    signal.signal(signal.SIGTERM, lambda *_: application.enough.set())

    def work(seed: int) -> None:
        try:
            application.work(seed)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threads = [threading.Thread(target=work, args=(seed * THREADS + n,), daemon=True) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.1)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
