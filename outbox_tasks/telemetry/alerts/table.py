"""The table of the alerts, as the processes that send them use it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from outbox_tasks.database.connection import Database
from outbox_tasks.operating import overview
from outbox_tasks.operating.heartbeats import Heartbeats
from outbox_tasks.operating.problems import Connections, Problem, Site, look
from outbox_tasks.settings import Settings
from outbox_tasks.text import storable

log = logging.getLogger(__name__)

CHECK_EVERY = 15.0
"""Seconds between two checks, by one worker of the cluster, of what is stale and which alerts are over."""

QUIET = 1 / 12
"""The part of `alert_repeat` without a new occurrence after which an alert is over. If it were shorter, an alert that
comes and goes would be sent all day."""

HOLD = 60.0
"""Seconds for which a process leases the alerts that it posts: longer than it takes, even if the last post fails."""

LAG = 5.0
"""Seconds after which the end of a run is surely committed, so that a look for failed ones misses none."""

RUNS = 1_000
"""Failed runs that are read at a time."""

FIRST = 100
"""Messages of a destination and place that are looked at for the oldest."""

KEPT = 30 * 86_400.0
"""Seconds for which an alert that is over stays in the table."""

POSTS = 100
"""Tries to post an alert, at most five minutes apart."""

KEYS = 10
"""Keys that an alert names; it counts the others."""


@dataclass(slots=True)
class Occurrence:
    """What happened for one alert and is not recorded yet."""

    kind: str
    destination: str
    facts: dict[str, Any]
    count: int = 1

    @property
    def name(self) -> str:
        """Of the alert: one for each destination, and for each code of its dead letters."""
        code = [str(self.facts["code"])] if self.kind == "dead_letter" else []
        return " ".join(filter(None, (self.kind, self.destination, *code)))

    def add(self, later: Occurrence) -> None:
        """Count a later one of the same alert. Its facts replace ours, but the keys of both are kept."""
        keys = [*self.facts.get("keys", ()), *later.facts.get("keys", ())]
        self.facts = {**later.facts, **({"keys": list(dict.fromkeys(keys))[:KEYS]} if keys else {})}
        self.count += later.count


class AlertTable:
    """The table of the alerts."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._settings = database.settings

    def close(self) -> None:
        """Close its connections. It may be used again."""
        self._database.close()

    def record(self, occurrences: Mapping[str, Occurrence]) -> list[Any]:
        """Record what happened, by the names of its alerts. Returns the alerts to send now."""
        happened = [
            {
                "alert": storable(name),
                "kind": one.kind,
                "destination": storable(one.destination),
                "count": one.count,
                "facts": {key: _storable(value) for key, value in one.facts.items() if value is not None},
            }
            for name, one in sorted(occurrences.items())
        ]
        parameters = {
            "happened": json.dumps(happened),
            "again": self._settings.alert_repeat,
            "posting": self._settings.alert_webhook is not None,
        }
        return [row for row in self._database.ask("alert/record.sql", **parameters) if row.now]

    def is_our_turn(self, interval: float) -> bool:
        """Whether this process is the one of the cluster that checks now."""
        # Slightly less than the interval: otherwise every other turn would be missed by a moment.
        return bool(self._database.ask("alert/turn.sql", pace=interval * 0.9))

    def stale(self) -> dict[str, float]:
        """For how many seconds the oldest message has been due, of each destination that is stale. Those that are not
        configured here count too."""
        found = overview.destinations(self._database, bound=FIRST, estimate=False)
        late = self._settings.stale_after
        return {name: one.oldest or 0.0 for name, one in found.items() if one.in_service and (one.oldest or 0) > late}

    def claims_late(self) -> bool:
        """Whether statements of claims don't end in time."""
        return Heartbeats.read(self._database).claims_late

    def feeds_in_trouble(self) -> Iterator[Problem]:
        """The feeds that fail, or are late."""
        with closing(Connections(self._settings)) as connections:
            yield from look(Site(connections), only=("feed_fails", "feed_late")).everything

    def failed_runs(self) -> Iterator[Any]:
        """The supervised tasks that have ended dead since the last look, each once: see alert/failed_runs.sql."""
        names = [name for name, each in self._settings.destinations.items() if each.scheme == "celery"]
        while names:
            parameters = {"names": names, "lag": LAG, "size": RUNS}
            rows = self._database.ask("alert/failed_runs.sql", **parameters)
            found = [row for row in rows if row.id is not None]
            yield from found
            until = found[-1].dead_at if len(found) == RUNS else rows[0].until
            self._database.ask("alert/looked.sql", until=until)
            if len(found) < RUNS:
                return

    def end(self) -> list[Any]:
        """End the alerts that are over. Returns those whose end is sent."""
        quiet = max(self._settings.alert_repeat * QUIET, 2 * check_interval(self._settings))
        parameters = {"quiet": quiet, "posting": self._settings.alert_webhook is not None}
        return [row for row in self._database.ask("alert/end.sql", **parameters) if row.now]

    def lease_posts(self) -> Sequence[Any]:
        """The alerts to post. No other process posts them for `HOLD` seconds."""
        return self._database.ask("alert/take_posts.sql", hold=HOLD)

    def posted(self, rows: Sequence[Any]) -> None:
        """Note that they were posted."""
        self._database.ask("alert/posted.sql", **_lease(rows))

    def put_off(self, rows: Sequence[Any], wait: float) -> None:
        """Note that they could not be posted."""
        for row in self._database.ask("alert/put_off.sql", **_lease(rows), wait=wait, most=POSTS):
            if row.post_at is None:
                log.error("gave up posting the alert %r after %d tries", row.name, POSTS)

    def known(self, size: int) -> list[Any]:
        """The alerts: open ones first, then the latest."""
        return list(self._database.ask("alert/known.sql", size=size))

    def forget(self) -> None:
        """Delete the alerts that have long been over."""
        self._database.ask("alert/forget.sql", keep=KEPT)


def check_interval(settings: Settings) -> float:
    """Seconds between two checks: often enough for what `stale_after` and `alert_repeat` promise."""
    return min(CHECK_EVERY, settings.stale_after / 4, settings.alert_repeat * QUIET / 2)


def _lease(rows: Sequence[Any]) -> dict[str, Any]:
    return {"names": [row.name for row in rows], "lease": rows[0].post_at}


def _storable(fact: Any) -> Any:
    if isinstance(fact, list):
        return [storable(text) for text in fact]
    return storable(fact) if isinstance(fact, str) else fact
