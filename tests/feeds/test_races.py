"""Writers race in each kind of source, and the bridge dies again and again."""

from __future__ import annotations

import random
from collections.abc import Sequence

from outbox_tasks.feeds.bridge import bridge
from outbox_tasks.feeds.source import Row, Source
from outbox_tasks.feeds.store import Feeds
from outbox_tasks.relay.store import Store
from tests.feeds.sources import Place, Race, made, place
from tests.storage.conftest import Box
from tests.storage.test_drain import storage as storage

__all__ = ["made", "place"]

MESSAGE = '{"event_type": "order.created", "destination": "orders", "content_type": "application/json", "text": "{}"}'


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


class Bridges(Race):
    """Copies into the relay's own tables."""

    def __init__(self, place: Place, rows: int, box: Box, storage: Store) -> None:
        super().__init__(place, rows)
        self.deaths = 0
        self._box, self._storage, self._chance = box, storage, random.Random(1)

    def _write_row(self, connection: object, key: str | None) -> str:
        return self.place.write(connection, key, MESSAGE)

    def _copy(self, source: Source) -> bool:
        try:
            mortal: Source = Mortal(source, self._chance)  # type: ignore[assignment]
            done = bridge(Feeds(self._storage), mortal, self._storage.settings)
        except Died:
            self.deaths += 1
            self._box.connection.execute("UPDATE outbox_feeds SET locked_until = '-infinity', not_before = NULL")
            return False
        assert done.error is None
        return done.copied == 0

    def read(self) -> None:
        """What the relay has, in its order."""
        rows = self._box.rows("SELECT seq, id, key FROM outbox_messages ORDER BY seq")
        self.copied = [(seq, str(id), key) for seq, id, key in rows]


def test_no_row_is_lost_invented_doubled_or_overtakes_its_key(place: Place, box: Box, storage: Store) -> None:
    race = Bridges(place, 2400, box, storage)
    race.run()
    race.read()
    assert {**race.found, "inversions by number": 0} == dict.fromkeys(race.found, 0)
    assert len(race.copied) == len(race.committed) > 1800
    assert race.deaths > 10
    assert place.source().lag()[0] == 0
    box.check_books()
