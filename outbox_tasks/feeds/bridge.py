"""Copies the rows of a feed to the relay's messages, and deletes them at their source.

No transaction is open in the relay's database while the source is asked. Whatever step a bridge dies after, the next
one first deletes what is noted as copied, and never copies it again. A bridge that was stopped for long has lost its
token, and copies nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

import psycopg

from outbox_tasks.errors import ConfigurationError, DatabaseTooSlow, SourceTrouble
from outbox_tasks.feeds.feed_list import FeedList
from outbox_tasks.feeds.place import with_routes_of
from outbox_tasks.feeds.rows import copied, unreadable
from outbox_tasks.feeds.source import Row, Source
from outbox_tasks.feeds.store import Copy, Feeds
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings

log = logging.getLogger("outbox_tasks.bridge")

ROWS_A_COPY = 2000
"""Rows that one statement copies."""

RUN_SECONDS = 5.0
"""Seconds after which a run ends, so that other feeds have their turn."""

COPY_BYTES = 4 * 1024 * 1024
"""Bytes of messages that one statement copies, unless they are of one row: a statement has a time limit."""


@dataclass(slots=True)
class Bridged:
    """What a run did."""

    taken: bool = True
    """False: another bridge has the lease, or the source failed just now."""
    copied: int = 0
    dead: int = 0
    more: bool = False
    error: str | None = None
    """Why the source could not be read."""


def bridge(
    feeds: Feeds,
    source: Source,
    settings: Settings,
    *,
    longest: float = RUN_SECONDS,
    stop: Callable[[], bool] = lambda: False,
    wake: Callable[[], object] = lambda: None,
) -> Bridged:
    """Copy until a look finds nothing, or `longest` is over and something is copied. `wake`: called when messages are
    committed that a claim may take. Raises `DatabaseUnavailable`; then the lease runs out."""
    token, bridged = str(uuid4()), Bridged()
    began = time.monotonic()
    left = feeds.take(source.name, token)
    if left is None:
        return Bridged(taken=False)
    settings, former = with_routes_of(settings, source.name), None
    try:
        _delete(feeds, source, token, left)
        while rows := source.look(ROWS_A_COPY):
            if rows[0][:2] == former:
                raise source.undeletable(rows[0])
            # However slow the source is, a run copies something.
            late = former is not None and time.monotonic() >= began + longest
            if stop() or late:
                bridged.more = True
                break
            former = rows[0][:2]
            if not _copy(feeds, source.name, token, rows, settings, bridged):
                log.warning("another bridge has the feed %s by now", source.name)
                return bridged
            wake()
            _delete(feeds, source, token, [(row.number, row.id) for row in rows])
        feeds.end(source.name, token, lag=source.lag())
    except SourceTrouble as error:
        bridged.error = str(error)
        log.warning("%s", error)
        feeds.end(source.name, token, error=bridged.error)
    if bridged.copied:
        log.info("copied %d rows of the feed %s, %d dead", bridged.copied, source.name, bridged.dead)
    return bridged


def _delete(feeds: Feeds, source: Source, token: str, rows: Sequence[tuple[int, str]]) -> None:
    if rows:
        source.delete(rows)
        feeds.deleted(source.name, token)


def _copy(feeds: Feeds, feed: str, token: str, rows: Sequence[Row], settings: Settings, bridged: Bridged) -> bool:
    """Copy rows, large ones a few at a time; those that PostgreSQL refuses as dead letters. Returns whether the lease
    is still ours."""
    if len(rows) == 1 or sum(row.size for row in rows) <= COPY_BYTES:
        try:
            return _write(feeds, feed, token, [copied(row, feed, settings) for row in rows], bridged)
        except (psycopg.DataError, psycopg.IntegrityError) as error:
            if len(rows) == 1:
                refused = unreadable(rows[0], feed, error.diag.message_primary or str(error))
                return _write(feeds, feed, token, [refused], bridged)
    # Too large for one statement, or PostgreSQL refused one of these rows: halve them until that row is alone.
    first, second = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    return all(_copy(feeds, feed, token, half, settings, bridged) for half in (first, second))


def _write(feeds: Feeds, feed: str, token: str, rows: Sequence[Copy], bridged: Bridged) -> bool:
    fresh = feeds.copy(feed, token, rows)
    if fresh is None:
        return False
    bridged.copied += len(fresh)
    bridged.dead += sum(row.dead is not None and row.number in fresh for row in rows)
    return True


def bridge_all(
    store: Store,
    stop: Callable[[], bool] = lambda: False,
    only: str | None = None,
    longest: float = 60.0,
) -> dict[str, Bridged]:
    """Copy the rows of all feeds, one feed after the other, or of the feed `only`, for `longest` seconds each. A feed
    in trouble holds up no other."""
    feed_list, results = FeedList(store), {}
    try:
        for name in feed_list.places() if only is None else [only]:
            if stop():  # a source that does not answer takes some seconds
                break
            try:
                source = feed_list.source(name)
                if source is None:
                    results[name] = Bridged(error=f"there is no feed {name!r} in the settings")
                else:
                    results[name] = bridge(Feeds(store), source, store.settings, longest=longest, stop=stop)
            except (ConfigurationError, DatabaseTooSlow, psycopg.DataError, psycopg.IntegrityError) as error:
                results[name] = Bridged(error=str(error))
    finally:
        feed_list.close()
    return results
