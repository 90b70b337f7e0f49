"""Writers race in each kind of source, their transactions overlap, and the bridge dies again and again."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from outbox_tasks.feeds.bridge import bridge
from outbox_tasks.feeds.source import Row, Source
from outbox_tasks.feeds.store import Feeds
from outbox_tasks.relay.store import Store
from tests.feeds.places import Place, made, place
from tests.storage.conftest import Box
from tests.storage.test_drain import storage as storage

__all__ = ["made", "place"]

MESSAGE = '{"event_type": "order.created", "destination": "orders", "content_type": "application/json", "text": "{}"}'

WRITERS, ROWS_EACH, KEYS = 6, 200, 5


class Died(BaseException):
    """As a kill: nobody catches it."""


class Mortal:
    """A source whose user dies in one of some calls, before or after the source has done its part."""

    def __init__(self, source: Source, chance: random.Random) -> None:
        self.name, self._source, self._chance = source.name, source, chance
        self.lag = source.lag

    def look(self, most: int) -> list[Row]:
        self._dies()
        return self._source.look(min(most, 50))

    def delete(self, rows: Sequence[tuple[int, str]]) -> None:
        self._dies()
        self._source.delete(rows)
        self._dies()

    def _dies(self) -> None:
        if self._chance.random() < 0.1:
            raise Died


class Written(NamedTuple):
    key: str | None
    began: float
    returned: float


class Writers:
    """They write rows; a tenth of their transactions is rolled back."""

    def __init__(self, place: Place) -> None:
        self.committed: dict[str, Written] = {}
        self.failed: list[BaseException] = []
        self._place = place
        self.threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(WRITERS)]

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        try:
            connection = self._place.connect(wait=60)
            written = 0
            while written < ROWS_EACH:
                rows = dict(self._write(connection, chance) for _ in range(chance.randint(1, 4)))
                written += len(rows)
                if chance.random() < 0.1:
                    connection.rollback()
                else:
                    connection.commit()
                    self.committed |= rows
        except BaseException as error:
            self.failed.append(error)

    def _write(self, connection: Any, chance: random.Random) -> tuple[str, Written]:
        key = chance.choice([*(f"key {n}" for n in range(KEYS)), None])
        began = time.monotonic()
        id = self._place.write(connection, key, MESSAGE)
        row = Written(key, began, time.monotonic())
        if chance.random() < 0.2 and self._place.dialect != "sqlite":
            time.sleep(chance.random() / 200)
        return id, row


def test_no_row_is_lost_invented_doubled_or_overtakes_its_key(place: Place, box: Box, storage: Store) -> None:
    writers, source, chance, deaths = Writers(place), place.source(timeout=60), random.Random(1), 0
    for thread in writers.threads:
        thread.start()
    copied_all = False
    while not copied_all:
        ended = not any(thread.is_alive() for thread in writers.threads)
        mortal: Source = Mortal(source, chance)  # type: ignore[assignment]
        try:
            done = bridge(Feeds(storage), mortal, storage.settings)
        except Died:
            deaths += 1
            box.connection.execute("UPDATE outbox_feeds SET locked_until = '-infinity', not_before = NULL")
            continue
        assert done.error is None
        copied_all = ended and done.copied == 0
    assert not writers.failed
    copied = [str(id) for [id] in box.rows("SELECT id FROM outbox_messages ORDER BY seq")]
    assert (set(copied), len(copied)) == (set(writers.committed), len(writers.committed))
    latest: dict[str, float] = defaultdict(float)
    for id in copied:
        written = writers.committed[id]
        if written.key is not None:  # its insert returned before that of a row that was copied earlier had begun
            assert written.returned >= latest[written.key]
            latest[written.key] = max(latest[written.key], written.began)
    assert deaths > 5
    assert source.lag()[0] == 0
    box.check_books()
