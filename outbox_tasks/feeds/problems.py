"""The feeds: whether their sources can be read, and whether their rows are copied in time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from outbox_tasks.database.connection import Database
from outbox_tasks.errors import ConfigurationError, OutboxError, SourceTrouble
from outbox_tasks.feeds.feed_list import FeedList
from outbox_tasks.feeds.place import FeedPlace
from outbox_tasks.feeds.source import open_source
from outbox_tasks.feeds.store import Feeds
from outbox_tasks.operating.feed_state import FeedState
from outbox_tasks.operating.problems.problem import Problem, error, first_ones
from outbox_tasks.operating.problems.site import ANSWER_SECONDS, CONNECT_SECONDS, Check, Problems, Site, ask_all
from outbox_tasks.text import many, shell_line, some, span


def copied(site: Site) -> Problems:
    """Whether the rows of feeds are copied, and in time."""
    late = [state for state in site.feeds if state.waiting and state.age > site.settings.stale_after]
    # a restart of a source takes less
    failing = [state for state in site.feeds if (state.failing or 0.0) > 30.0]
    yield from first_ones(failing, _fails, "feed")
    yield from first_ones([state for state in late if state not in failing], _late, "feed")


def _fails(state: FeedState) -> Problem:
    return error(
        "feed_fails",
        f"The feed {state.name} can't be read for {span(state.failing or 0.0)}: {state.error}",
        "Its rows wait in the application's database, and nothing is lost.",
        f"Mend its source, or correct [feeds.{state.name}].\n{shell_line('feed', 'run', state.name)}",
        which=state.name,
        since=state.failing,
    )


def _late(state: FeedState) -> Problem:
    return error(
        "feed_late",
        f"The feed {state.name} has a row that waits for {span(state.age)}.",
        "What its application publishes is not sent. The rows wait in its database, and nothing is lost.",
        f"{shell_line('feed', 'run', state.name)} copies at once, and says what is wrong.",
        which=state.name,
        since=state.age,
        how_many=state.waiting,
    )


def sources(site: Site) -> Problems:
    """Whether the source of each feed answers from here, and has a table that can be read."""
    feeds = FeedList(site.store)
    try:
        feeds.listed()
    except ConfigurationError as refused:
        yield error(
            "feed_list", str(refused), "Feeds that only this query knows are not copied.",
            "Correct it in [feeds], or give the relay's role the right to read what it names.",
        )  # fmt: skip
    places = feeds.places()
    silent = f"no answer within {ANSWER_SECONDS + CONNECT_SECONDS:g} s"
    names = sorted(places)[:20]
    for name, why in ask_all(names, lambda name: _trouble(name, places[name]), silent, ANSWER_SECONDS).items():
        if why is not None:
            yield error(
                "feed_away", f"The feed {name} can't be read from here: {why}",
                "Its rows wait in the application's database, and nothing is lost.",
                f"Start it, correct [feeds.{name}], or make its tables: outbox-tasks feed init URL", which=name,
            )  # fmt: skip


def _trouble(name: str, place: FeedPlace) -> str | None:
    try:
        with closing(open_source(name, place.url, place.url_schema, ANSWER_SECONDS)) as source:
            source.look(1)
            source.lag()
    except SourceTrouble as trouble:
        return f"{trouble.url}: {trouble.reason}."
    except OutboxError as refused:
        return str(refused)
    return None


def uncopied(database: Database) -> Iterator[str]:
    """Sentences about rows that are not copied yet: a message that nobody finds may be one of them."""
    if not database.settings.feeds:
        return
    states = Feeds(database).states()
    for state in states:
        if state.failing is not None:
            yield f"It waits at its source: the feed {state.name} fails since {span(state.failing)}: {state.error}"
        elif state.waiting:
            yield f"It waits at its source: {many(state.waiting, 'row')} of the feed {state.name} are not copied yet."
    if unread := sorted(set(database.settings.feeds) - {state.name for state in states}):
        yield f"It waits at its source: no row of {some(unread)} was ever copied."


CHECKS = (
    Check("Feeds", "their rows are copied in time", copied, {"feed_fails", "feed_late"}, needs=("tables",),
          concerns=lambda settings: settings.feeds),
    Check("Feeds", "their sources can be read", sources, {"feed_list", "feed_away"}, needs=("tables",),
          concerns=lambda settings: settings.feeds, deep=True),
)  # fmt: skip
