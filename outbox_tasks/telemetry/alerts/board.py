"""The table of the alerts, as the processes that tell of them see it."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outbox_tasks.database.connection import Database
from outbox_tasks.database.schema import tables
from outbox_tasks.operating import overview
from outbox_tasks.settings import Settings
from outbox_tasks.telemetry.alerts import statements
from outbox_tasks.text import storable

log = logging.getLogger(__name__)

LOOK = 15.0
"""Seconds between two looks of the cluster at what is stale, and what is over."""

QUIET = 1 / 12
"""The part of `alert_repeat` after which what has not come back is over: sooner, an alert would come and go all day."""

HOLD = 60.0
"""Seconds for which one process has alerts to post: longer than it takes, if the first that fails is the last."""

KEPT = 30 * 86_400.0
"""Seconds for which an alert that is over is remembered."""

KEYS = 10
"""Keys that are named; the rest are counted."""


@dataclass(slots=True)
class News:
    """What has happened under the name of one alert, and is not yet put down."""

    kind: str
    destination: str
    facts: dict[str, Any]
    count: int = 1

    def add(self, later: News) -> None:
        """One more of the same: its facts are the latest."""
        keys = [*self.facts.get("keys", ()), *later.facts.get("keys", ())]
        self.facts = {**later.facts, **({"keys": list(dict.fromkeys(keys))[:KEYS]} if keys else {})}
        self.count += later.count


class Board:
    """The table of the alerts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._settings = database.settings
        self._tables = t = tables(database.settings.database_schema)
        self._record = statements.record_alerts(t)

    def close(self) -> None:
        """Close its connections; it may be used again."""
        self._database.close()

    def record(self, news: Mapping[str, News]) -> list[Any]:
        """Put down what has happened. Returns the alerts that are to be told now."""
        happened = [
            {
                "alert": storable(name),
                "kind": one.kind,
                "destination": storable(one.destination),
                "count": one.count,
                "facts": {key: _storable(value) for key, value in one.facts.items() if value is not None},
            }
            for name, one in sorted(news.items())
        ]
        parameters = {
            "happened": json.dumps(happened),
            "again": self._settings.alert_repeat,
            "posting": self._settings.alert_webhook is not None,
        }
        return [row for row in self._database.rows(self._record, parameters) if row.now]

    def turn(self, pace: float) -> bool:
        """Whether it is our turn to look, of all the cluster."""
        # A little less than the pace, or every other turn would be missed by a moment.
        return bool(self._database.rows(statements.turn_to_look(self._tables), {"pace": pace * 0.9}))

    def stale(self) -> dict[str, float]:
        """For how many seconds the oldest message has been due, of each destination that is stale. Those that are not
        configured here count too."""
        found = overview.destinations(self._database, bound=1, estimate=False)
        return {name: one.oldest or 0.0 for name, one in found.items() if one.stale(self._settings)}

    def end(self) -> list[Any]:
        """End what is over. Returns the alerts whose end is to be told."""
        quiet = max(self._settings.alert_repeat * QUIET, 2 * pace(self._settings))
        parameters = {"quiet": quiet, "posting": self._settings.alert_webhook is not None}
        return [row for row in self._database.rows(statements.end_alerts(self._tables), parameters) if row.now]

    def take(self) -> Sequence[Any]:
        """Alerts that nobody else will post for `HOLD` seconds."""
        return self._database.rows(statements.take_posts(self._tables), {"hold": HOLD})

    def posted(self, rows: Sequence[Any]) -> None:
        """They have been posted."""
        self._database.rows(statements.posted(self._tables), _lease(rows))

    def put_off(self, rows: Sequence[Any], wait: float) -> None:
        """They could not be posted."""
        for row in self._database.rows(statements.put_off(self._tables), {**_lease(rows), "wait": wait}):
            if row.post_at is None:
                log.error("the alert %r is not posted any more, after %d tries", row.name, statements.POSTS)

    def known(self, size: int) -> list[Any]:
        """The alerts: see `statements.known_alerts`."""
        return list(self._database.rows(statements.known_alerts(self._tables), {"size": size}))

    def forget(self) -> None:
        """Forget what has long been over."""
        self._database.do(statements.forget_alerts(self._tables), {"keep": KEPT})


def pace(settings: Settings) -> float:
    """Seconds between two looks: often enough for what `stale_after` and `alert_repeat` promise."""
    return min(LOOK, settings.stale_after / 4, settings.alert_repeat * QUIET / 2)


def _lease(rows: Sequence[Any]) -> dict[str, Any]:
    return {"names": [row.name for row in rows], "lease": rows[0].post_at}


def _storable(fact: Any) -> Any:
    if isinstance(fact, list):
        return [storable(text) for text in fact]
    return storable(fact) if isinstance(fact, str) else fact
