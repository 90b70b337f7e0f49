"""The feeds: whether their sources can be read, and whether their rows are copied in time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress

from outbox_tasks.errors import ConfigurationError, OutboxError, SourceTrouble
from outbox_tasks.feeds.source import open_source
from outbox_tasks.operating import health
from outbox_tasks.operating.doctor.finding import Fine, error
from outbox_tasks.operating.doctor.site import TIMEOUT, Results, Site
from outbox_tasks.relay.feed_list import FeedList
from outbox_tasks.relay.store.feeds import Feeds
from outbox_tasks.settings.feed import FeedPlace
from outbox_tasks.text import many, some

READ = 20
"""Sources that are read; the others are counted."""

MARGIN = 1.0
"""Seconds for connecting, beside those for an answer."""


def sources(site: Site) -> Results:
    """Whether the source of each feed answers, and has a table that can be read."""
    if not site.settings.feeds:
        return
    feeds = FeedList(site.store)
    try:
        feeds.listed()
    except ConfigurationError as refused:
        yield error(
            "feed_list", str(refused), "Feeds that only this query knows are not copied.",
            "Correct it in [feeds], or give the relay's role the right to read what it names.",
        )  # fmt: skip
    places = feeds.places()
    answers = _read(dict(sorted(places.items())[:READ]))
    for name, why in answers.items():
        if why is not None:
            yield error(
                "feed_away", f"The feed {name} can't be read from here: {why}",
                "Its rows wait in the application's database, and nothing is lost.",
                f"Start it, correct [feeds.{name}], or make its tables: outbox-tasks feed init URL",
            )  # fmt: skip
    if good := [name for name, why in answers.items() if why is None]:
        left = f"; {len(places) - READ:,} more were not asked" if len(places) > READ else ""
        yield Fine(f"{many(len(good), 'feed')} can be read: {some(good)}{left}")


def _read(places: Mapping[str, FeedPlace]) -> dict[str, str | None]:
    """Why each source can't be read; None: it can. All are asked at the same time."""
    answers: queue.SimpleQueue[tuple[str, str | None]] = queue.SimpleQueue()
    for name, place in places.items():
        # A lookup of a name has no time limit, so a thread that hangs there is left behind.
        threading.Thread(target=lambda n=name, p=place: answers.put((n, _trouble(n, p))), daemon=True).start()
    found: dict[str, str | None] = dict.fromkeys(places, f"no answer within {TIMEOUT + MARGIN:g} s")
    deadline = time.monotonic() + TIMEOUT + MARGIN
    with suppress(queue.Empty):
        for _ in places:
            name, why = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            found[name] = why
    return found


def _trouble(name: str, place: FeedPlace) -> str | None:
    try:
        with closing(open_source(name, place.url, place.url_schema, TIMEOUT)) as source:
            source.look(1)
            source.lag()
    except SourceTrouble as trouble:
        return f"{trouble.url}: {trouble.reason}."
    except OutboxError as refused:
        return str(refused)
    return None


def copied(site: Site) -> Results:
    """Whether the rows of feeds are copied in time."""
    if not site.settings.feeds:
        return
    late = list(health.feeds(site.settings, Feeds(site.store).states()))
    for problem in late:
        yield error(
            "feed_late", f"{problem.text[0].upper()}{problem.text[1:]}.",
            "What its application publishes is not sent. The rows wait in its database, and nothing is lost.",
            f"outbox-tasks feed run {problem.about} copies at once, and says what is wrong.",
        )  # fmt: skip
    if not late:
        yield Fine("the rows of all feeds are copied in time")
