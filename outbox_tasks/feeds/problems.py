"""The feeds: whether their sources can be read, and whether their rows are copied in time."""

from __future__ import annotations

from outbox_tasks.errors import ConfigurationError
from outbox_tasks.feeds.feed_list import FeedList
from outbox_tasks.operating.overview import FeedState
from outbox_tasks.operating.problems.problem import Problem, error, first_ones
from outbox_tasks.operating.problems.site import Check, Problems, Site
from outbox_tasks.text import shell_line, span


def copied(site: Site) -> Problems:
    """Whether the rows of feeds are copied, and in time."""
    # a restart of a source takes less
    failing = [state for state in site.feeds if (state.failing or 0.0) > 30.0]
    others = [state for state in site.feeds if state not in failing]
    late = [state for state in others if state.waiting and state.age > site.settings.stale_after]
    return first_ones((*map(_fails, failing), *map(_late, late)), "feed")


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


def listed(site: Site) -> Problems:
    """Whether the query for feeds can be read."""
    try:
        FeedList(site.store).listed()
    except ConfigurationError as refused:
        yield error(
            "feed_list", str(refused), "Feeds that only this query knows are not copied.",
            "Correct it in [feeds], or give the relay's role the right to read what it names.",
        )  # fmt: skip


CHECKS = (
    Check("Feeds", "their rows are copied in time", copied, {"feed_fails", "feed_late"}, needs=("tables",),
          concerns=lambda settings: settings.feeds),
    Check("Feeds", "the query for them can be read", listed, {"feed_list"}, needs=("tables",), deep=True,
          concerns=lambda settings: settings.feeds),
)  # fmt: skip
