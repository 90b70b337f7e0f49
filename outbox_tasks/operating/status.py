"""The state of an outbox for people: what is wrong, what waits, who is at work, how much is queued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from outbox_tasks.operating import overview
from outbox_tasks.operating.heartbeats import Heartbeats
from outbox_tasks.operating.overview import Destinations, DestinationStatus, FeedState
from outbox_tasks.operating.problems import Connections, Examination, Site, look
from outbox_tasks.operating.problems.answers import Silence
from outbox_tasks.settings import DRAIN_QUEUE, PUBLISH_QUEUE


@dataclass(frozen=True, slots=True)
class Status:
    """The state of an outbox at one moment. Of an outbox whose database does not answer, only the problems are
    known."""

    examination: Examination
    queues: dict[str, int] | str
    """How much is queued, by queue, or the reason why nobody knows."""
    destinations: Destinations = field(default_factory=dict)
    heartbeats: Heartbeats = field(default_factory=Heartbeats)
    feeds: Sequence[FeedState] = ()
    acts: Sequence[Any] = ()
    """People's acts that are under way: see sql/act/going.sql."""
    archived: int = 0
    estimated: bool = False
    """Whether `archived` is an estimate."""

    @property
    def ranked(self) -> list[tuple[str, DestinationStatus]]:
        """The destinations: those with the worst problems first, then those with the longest backlog."""
        places: dict[str, int] = {}
        for place, problem in enumerate(self.examination.everything):
            places.setdefault(problem.which, place)
        last = len(places)
        return sorted(self.destinations.items(), key=lambda pair: (places.get(pair[0], last), -pair[1].due, pair[0]))

    @property
    def drains(self) -> int:
        return sum(each.drains for each in self.destinations.values())

    @property
    def processes(self) -> int:
        """How many processes send: those of the live workers that serve singles or drains."""
        workers = self.heartbeats.alive
        return sum(
            each.facts.get("concurrency") or 0 for each in workers if {PUBLISH_QUEUE, DRAIN_QUEUE} & {*each.queues}
        )


def read(connections: Connections) -> Status:
    """Look at all of it. What can't be read is a problem."""
    site = Site(connections)
    examination = look(site)
    if "counts" not in site.reached:
        return Status(examination, _queues(site))
    archived, estimated = overview.archived(site.store)
    acts = site.store.ask("act/going.sql", size=100)
    return Status(examination, _queues(site), site.destinations, site.heartbeats, site.feeds, acts, archived, estimated)


def _queues(site: Site) -> dict[str, int] | str:
    answer = site.broker_answer
    if answer is None:
        return "not asked: OUTBOX_BROKER_URL is not set"
    return "not known: the broker gave no answer" if isinstance(answer, Silence) else answer.lengths
