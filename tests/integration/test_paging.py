"""Lists page by page: each message once, in order, in both directions, and by index."""

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

from outbox_tasks.operating.messages import paging
from outbox_tasks.operating.messages.find import ARCHIVED, Filter, Lookup
from outbox_tasks.operating.messages.paging import Cursor, Page, read_page
from outbox_tasks.relay.store import Store
from tests.conftest import Rows

each_example = hypothesis_settings(
    max_examples=25,
    phases=[Phase.explicit, Phase.generate],  # there is nothing to shrink in a seed
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

CHOICES: dict[str, list[Any]] = {
    "id": ["new", "new", "again"],
    "destination": ["orders", "mails"],
    "event_type": ["order.made", "order.paid", "mail"],
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
    event_type=st.sampled_from([None, None, "order.*"]),
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


def walk(store: Store, wanted: Filter, size: int, at: Cursor | None = None) -> Iterator[Page]:
    """All pages, one after the other, to the side of the cursor."""
    newer = at is not None and at.newer
    for _ in range(500):
        page = read_page(store, wanted, size, at)
        yield page
        found = page.newer if newer else page.older
        if found is None:
            return
        at = Cursor.parse(str(found))
        assert at == found
    pytest.fail("the walk has no end")


def ids(pages: list[Page]) -> list[UUID]:
    return [message["id"] for page in pages for message in page.messages]


def record(**of: Any) -> dict[str, Any]:
    return {**{name: some[0] for name, some in CHOICES.items()}, **of}


@pytest.mark.parametrize("look", [3, 1000])
@each_example
@given(records=records, wanted=filters, size=st.integers(1, 4))
@example(
    records=[record(state="sent", age=3600), record(state="sent", id="again", age=3600), *[record(state="sent")] * 9],
    wanted=Filter(older_than=1800.0),
    size=1,
)
def test_a_walk_finds_each_message_once_in_both_directions(
    store: Store, fill: Any, look: int, records: list[dict[str, Any]], wanted: Filter, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        for name in ("ROWS_LOOKED_AT", "ROWS_LOOKED_AT_FIRST"):
            patched.setattr(paging, name, look)
        right = expected(fill(records), wanted)
        pages = list(walk(store, wanted, size))
        assert ids(pages) == right
        assert all(len(page.messages) == size for page in pages[:-1] if page.complete)
        assert pages[0].newer is None
        if (back := pages[-1].newer) is not None:
            last = len(pages[-1].messages)
            backwards = list(walk(store, wanted, size, back))
            assert ids(backwards[::-1]) == right[: len(right) - last]
            assert backwards[-1].newer is None
            # And from there to the end again.
            assert backwards[-1].older is not None
            top = len(backwards[-1].messages)
            assert ids(list(walk(store, wanted, size, backwards[-1].older))) == right[top:]


@hypothesis_settings(each_example, max_examples=10)
@given(
    records=records.filter(bool),
    sent=st.lists(st.integers(0, 9), min_size=10, max_size=10),
    size=st.integers(1, 3),
)
def test_messages_that_are_sent_or_written_meanwhile_move_nothing(
    store: Store, rows: Rows, fill: Any, records: list[dict[str, Any]], sent: list[int], size: int
) -> None:
    made = fill([{**one, "id": "new"} for one in records])
    seen: list[UUID] = []
    for page in walk(store, Filter(), size):
        seen += ids([page])
        id = str(made[sent.pop() % len(made)]["id"])
        if any(str(row.id) == id for row in rows.hot()):
            rows.settle(id)
        rows.insert(1)
        sent = sent or [0]
    assert seen == expected(made, Filter())


def test_the_dead_of_a_group_have_pages(store: Store, rows: Rows) -> None:
    now = datetime.now(UTC)
    died = {"status": "dead", "last_error_code": "http_400", "last_error": "no such order"}
    ours = [rows.insert(dead_at=now - timedelta(minutes=n // 3), **died)[0] for n in range(7)]
    rows.insert(3, dead_at=now, **{**died, "last_error_code": "http_401"})
    group = next(group["group"] for group in Lookup(store).groups()[0] if group["count"] == 7)
    found = ids(list(walk(store, Filter(states=("dead",), group=group), 2)))
    assert len(found) == 7
    assert {str(id) for id in found} == set(ours)
    assert [str(id) for id in found[-1:]] == ours[-1:]


def test_says_how_far_it_looked_and_goes_on_from_there(
    store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ROWS_LOOKED_AT", "ROWS_LOOKED_AT_FIRST"):
        monkeypatch.setattr(paging, name, 20)
    [wanted] = rows.insert(event_type="wanted")
    rows.insert(50)
    page = read_page(store, Filter(event_type="wanted"), 10)
    assert (page.messages, page.complete, page.looked) == ([], False, 20)
    assert page.reached is not None
    found = list(walk(store, Filter(event_type="wanted"), 10))
    assert len(found) == 3
    assert [str(id) for id in ids(found)] == [wanted]


@pytest.mark.parametrize(
    "said",
    [
        "", "older", "~~~", "older~seq~zz", "older~seq~1~2", "older~death~1", "older~seq~-1", f"older~seq~{1 << 63}",
        "older~death~yesterday~1", "up~seq~1", "older~hat~1", "older~seq~\0", "older~seq~٣",
    ],
)  # fmt: skip
def test_a_text_that_is_no_cursor_is_refused(said: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 # whatever it says, the page says it in its own words
        Cursor.parse(said)


@pytest.mark.parametrize("said", ["older~death", "older~death~2026-01-01~1"])
def test_a_cursor_of_other_filters_is_refused(store: Store, said: str) -> None:
    with pytest.raises(ValueError, match="other filters"):
        read_page(store, Filter(), 10, Cursor.parse(said))
