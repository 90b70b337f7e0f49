"""Lists: the right messages, page by page, each once and in order, and all of them or else it is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from random import Random
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import text

from outbox_tasks.operating.messages import find, paging
from outbox_tasks.operating.messages.find import ARCHIVED, Filter, Lookup
from outbox_tasks.operating.messages.paging import Cursor, Page, read_page
from outbox_tasks.relay.store import Store
from tests.conftest import Rows, seconds_from_now
from tests.integration.acting import bury

each_example = hypothesis_settings(
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],  # there is nothing to shrink in a seed
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

CHOICES: dict[str, list[Any]] = {
    "id": ["new", "new", "again"],
    "destination": ["orders", "mails"],
    "event_type": ["order.made", "order.paid", "order_made", "mail"],
    "key": [None, None, "k", "l"],
    "state": ["pending", "scheduled", "leased", "retrying", "dead", "dead", "sent", "sent", "sent", "discarded"],
    "last_error_code": [None, "busy"],
    "age": [60, 60, 3600, 90_000],
    "dead": [5, 5, 50],
}
# From a seed: what hypothesis itself chooses is too often all alike.
records = st.builds(
    lambda seed, size: [{name: seed.choice(some) for name, some in CHOICES.items()} for _ in range(size)],
    st.builds(Random, st.integers(0, 1 << 32)),
    st.sampled_from([0, 5, 12]),
)
filters = st.builds(
    Filter,
    states=st.sampled_from([(), (), ("dead",), ("sent",), ("pending", "leased"), ("dead", "discarded"), ARCHIVED]),
    destination=st.sampled_from([None, None, "orders"]),
    event_type=st.sampled_from([None, None, "order.*", "order?made", "order_*"]),
    key=st.sampled_from([None, None, None, "k"]),
    code=st.sampled_from([None, None, None, "busy"]),
    older_than=st.sampled_from([None, None, 1800.0]),
    newer_than=st.sampled_from([None, None, 7200.0]),
)


@pytest.fixture
def fill(rows: Rows, schema: str) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Replaces all rows of the tables. Returns them, as a reference."""

    def fill(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        names = ("messages", "ready", "waiting", "leases", "dead", "journal", "trouble")
        with rows.engine.begin() as connection:
            connection.execute(text(f"TRUNCATE {', '.join(f'{schema}.outbox_{name}' for name in names)}"))
        made: list[dict[str, Any]] = []
        now = datetime.now(UTC)
        for one in sorted(records, key=lambda one: -one["age"]):  # numbers follow the time of writing
            made.append(row := _row(one, made, now))
            rows.insert(1, **{name: value for name, value in row.items() if name not in ("state", "age", "dead")})
            if row["state"] in ARCHIVED:
                rows.settle(str(row["id"]), row["state"])
        return made

    return fill


def _row(of: dict[str, Any], before: list[dict[str, Any]], now: datetime) -> dict[str, Any]:
    """A message as it is written, with its state."""
    id = uuid4()
    if of["id"] == "again" and of["state"] in ARCHIVED:  # an earlier one's: a replay writes it again
        id = ([row["id"] for row in before if row["state"] in ARCHIVED] or [id])[-1]
    created = now - timedelta(seconds=of["age"])
    waits = {"locked_until": now + timedelta(hours=1)}
    of_state: dict[str, Any] = {
        "scheduled": waits,
        "leased": {**waits, "lease": uuid4()},
        "retrying": {**waits, "attempts": 1},
        "dead": {"status": "dead", "dead_at": now - timedelta(seconds=of["dead"])},
    }.get(of["state"], {"locked_until": created})
    return {**of, "id": id, "created_at": created, **of_state}


def expected(made: list[dict[str, Any]], wanted: Filter) -> list[UUID]:
    """The ids in their order, in plain Python."""

    def fits(row: dict[str, Any]) -> bool:
        return (
            (not wanted.states or row["state"] in wanted.states)
            and wanted.destination in (None, row["destination"])
            and (wanted.event_type is None or fnmatchcase(row["event_type"], wanted.event_type))
            and wanted.key in (None, row["key"])
            and wanted.code in (None, row["last_error_code"])
            and (wanted.older_than is None or row["age"] >= wanted.older_than)
            and (wanted.newer_than is None or row["age"] <= wanted.newer_than)
        )

    by_death = wanted.states == ("dead",)
    fitting = [(row["dead_at"] if by_death else 0, n, row["id"]) for n, row in enumerate(made) if fits(row)]
    return [id for _, _, id in sorted(fitting, reverse=True)]


def walk(store: Store, wanted: Filter, size: int) -> Iterator[Page]:
    """All pages, one after the other."""
    at = None
    for _ in range(500):
        page = read_page(store, wanted, size, at)
        yield page
        if page.older is None:
            return
        at = Cursor.parse(str(page.older))
        assert at == page.older
    pytest.fail("the walk has no end")


def ids(pages: list[Page]) -> list[UUID]:
    return [message["id"] for page in pages for message in page.messages]


def record(**of: Any) -> dict[str, Any]:
    return {**{name: some[0] for name, some in CHOICES.items()}, **of}


def look_at(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    for name in ("ROWS_LOOKED_AT", "ROWS_A_LOOK"):
        monkeypatch.setattr(paging, name, rows)


@pytest.mark.parametrize("look", [3, 1000])
@each_example
@given(records=records, wanted=filters, size=st.integers(1, 4))
@example(
    records=[record(state="sent", age=3600), record(state="sent", id="again", age=3600), *[record(state="sent")] * 9],
    wanted=Filter(older_than=1800.0),
    size=1,
)
@example(records=[record(state="dead")] * 7, wanted=Filter(states=("dead",), destination="orders"), size=2)
def test_a_walk_finds_each_message_once(
    store: Store, fill: Any, look: int, records: list[dict[str, Any]], wanted: Filter, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        look_at(patched, look)
        right = expected(fill(records), wanted)
        pages = list(walk(store, wanted, size))
    assert ids(pages) == right
    assert all(len(page.messages) == size for page in pages[:-1] if page.complete)


def test_messages_that_are_sent_or_written_meanwhile_move_nothing(store: Store, rows: Rows, fill: Any) -> None:
    made = fill([record(state=state) for state in ("pending", "scheduled", "sent", "pending", "leased", "pending")])
    seen: list[UUID] = []
    for page in walk(store, Filter(), 2):
        seen += ids([page])
        for row in rows.hot():
            if row.id in seen and row.status == "pending":
                rows.settle(str(row.id))
        rows.insert(1)
    assert seen == expected(made, Filter())


def test_says_how_far_it_looked_and_goes_on_from_there(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_at(monkeypatch, 20)
    [wanted] = rows.insert(event_type="wanted")
    rows.insert(50)
    page = read_page(store, Filter(event_type="wanted"), 10)
    assert (page.messages, page.complete, page.looked) == ([], False, 20)
    assert page.reached is not None
    pages = list(walk(store, Filter(event_type="wanted"), 10))
    assert (len(pages), [str(id) for id in ids(pages)]) == (3, [wanted])
    with pytest.raises(ValueError):  # noqa: PT011
        read_page(store, Filter(), 10, Cursor.parse("1~2026-01-01"))


@pytest.mark.parametrize("text", ["", "~", "1~2", "-1", str(1 << 63), "1~yesterday", "\0", "٣"])
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        Cursor.parse(text)


def test_old_messages_and_those_at_work_are_found_behind_many_others(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the backlog: neither among the newest nor among the oldest."""
    monkeypatch.setattr(paging, "ROWS_LOOKED_AT", 5)
    old = [rows.insert(created_at=seconds_from_now(-n))[0] for n in (9000, 8000, 7000)]
    for id in (*old, *rows.insert(60, created_at=seconds_from_now(-100))):
        rows.settle(id)
    rows.insert(60)
    [leased] = rows.insert(lease=uuid4(), key="k", locked_until=seconds_from_now(30))
    [mail] = rows.insert(destination="mails")
    [dead] = bury(rows)
    rows.insert(60)

    def listed(**wanted: Any) -> list[str]:
        page = read_page(store, Filter(**wanted), 50)
        assert page.complete
        return [str(message["id"]) for message in page.messages]

    assert listed(older_than=3600.0) == old[::-1]
    assert listed(older_than=7500.0) == old[1::-1]
    assert listed(older_than=90_000.0) == []
    assert listed(states=("leased",)) == listed(states=("leased", "pending"), key="k") == [leased]
    assert listed(destination="mails", states=("pending",)) == [mail]
    assert listed(destination="orders", states=("dead", "leased")) == [dead, leased]


def test_dead_letters_are_in_groups_by_their_cause(store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup = Lookup(store)
    for n in range(3):  # at the same moment
        bury(rows, last_error=f"no such order {n} for '{n}ab' ({uuid4()})", dead_at=text("now()::date"))
    bury(rows, 2, destination="mails")
    bury(rows, event_type="order.paid")
    monkeypatch.setattr(find, "GROUPS_A_PAGE", 2)
    groups, complete = lookup.groups()
    assert ([group["count"] for group in groups], complete) == ([3, 2, 1], True)
    assert "no such order 2" in groups[0]["last_error"], "the last one to die"
    assert [group["count"] for group in lookup.groups("mails")[0]] == [2]
    assert len(ids(list(walk(store, Filter(states=("dead",), group=groups[0]["group"]), 2)))) == 3
    monkeypatch.setattr(find, "GROUPS_AT_MOST", 2)
    groups, complete = lookup.groups()
    assert (len(groups), complete) == (2, False)
