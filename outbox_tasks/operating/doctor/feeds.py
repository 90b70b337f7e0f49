"""The feeds: whether their sources can be read, and whether their rows are copied in time."""

from __future__ import annotations

from contextlib import closing

from outbox_tasks.errors import ConfigurationError, OutboxError, SourceTrouble
from outbox_tasks.feeds.source import open_source
from outbox_tasks.operating import health
from outbox_tasks.operating.doctor.finding import Fine, error, or_fine
from outbox_tasks.operating.doctor.site import MARGIN, TIMEOUT, Results, Site, ask_all
from outbox_tasks.relay.feed_list import FeedList
from outbox_tasks.relay.store.feeds import Feeds
from outbox_tasks.settings.feed import FeedPlace
from outbox_tasks.text import many, shell_line, some

READ = 20
"""Sources that are read; the others are counted."""


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
    silent = f"no answer within {TIMEOUT + MARGIN:g} s"
    answers = ask_all(sorted(places)[:READ], lambda name: _trouble(name, places[name]), silent, TIMEOUT)
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
    late = [
        error(
            "feed_late", problem.sentence,
            "What its application publishes is not sent. The rows wait in its database, and nothing is lost.",
            f"{shell_line('feed', 'run', problem.about)} copies at once, and says what is wrong.",
        )
        for problem in health.feeds(site.settings, Feeds(site.store).states())
    ]  # fmt: skip
    yield from or_fine(late, "the rows of all feeds are copied in time")
