"""Grouping what was claimed into bundles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from math import ceil
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_tasks.model import Bundle, Ticket
from outbox_tasks.relay.claim import SPREAD, WAKING_OF_MANY, _wanted, bundled
from outbox_tasks.relay.store.claims import Claimed
from outbox_tasks.settings import Settings

SETTINGS = Settings(
    bundle_size=10, destinations={"orders": {"url": "a://b"}, "single": {"url": "a://b", "bundle_size": 1}}
)


def claimed(seq: int, destination: str = "orders", alone: bool = False) -> Claimed:
    return Claimed(seq, f"id-{seq}", destination, f"event-{seq}", seq % 3, "pending", alone)


def sizes(rows: list[Claimed]) -> list[int]:
    return [len(bundle.tickets) for bundle in bundled(SETTINGS, rows, "lease")]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, []),
        (1, [1]),
        (3, [1, 1, 1]),
        (4, [1, 1, 1, 1]),
        (5, [2, 2, 1]),
        (36, [9, 9, 9, 9]),
        (40, [10, 10, 10, 10]),
        (41, [10, 10, 10, 10, 1]),
    ],
)
def test_little_is_spread_and_much_goes_in_full_bundles(count: int, expected: list[int]) -> None:
    assert sizes([claimed(n) for n in range(count)]) == expected


def test_a_bundle_size_of_one_is_the_plain_case() -> None:
    assert sizes([claimed(n, "single") for n in range(50)]) == [1] * 50


def test_a_ticket_says_what_begin_compares() -> None:
    [bundle] = bundled(SETTINGS, [claimed(5)], "lease")
    assert bundle == Bundle("orders", "lease", (Ticket("id-5", 2, "event-5"),))


MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("size", "expected"),
    [(30 * MIB, [1] * 40), (MIB, [4] * 10), (MIB // 2, [8] * 5), (1000, [10] * 4)],
)
def test_a_bundle_holds_no_more_bytes_than_one_statement_can_fetch(size: int, expected: list[int]) -> None:
    assert sizes([claimed(n)._replace(size=size) for n in range(40)]) == expected


def test_large_messages_that_travel_alone_are_not_run_together() -> None:
    rows = [claimed(n, "single")._replace(size=n * 40_000) for n in range(10)]
    assert [bundle.gather for bundle in bundled(SETTINGS, rows, "lease")] == [n < 5 for n in range(10)]


def test_a_row_whose_last_send_never_ended_travels_alone() -> None:
    rows = [claimed(n, alone=n in (2, 7)) for n in range(20)]
    bundles = list(bundled(SETTINGS, rows, "lease"))
    assert [b.tickets[0].id for b in bundles if len(b.tickets) == 1 and b.tickets[0].id in ("id-2", "id-7")] == [
        "id-2",
        "id-7",
    ]
    assert sorted(len(b.tickets) for b in bundles) == [1, 1, 3, 5, 5, 5]


rows = st.lists(st.tuples(st.sampled_from(["orders", "single"]), st.booleans()), max_size=150).map(
    lambda drawn: [claimed(seq, destination, alone) for seq, (destination, alone) in enumerate(drawn)]
)


@given(rows)
def test_every_row_is_in_one_bundle_of_its_destination_and_in_order(rows: list[Claimed]) -> None:
    bundles = list(bundled(SETTINGS, rows, "lease"))
    by_id = {row.id: row for row in rows}
    assert Counter(ticket.id for bundle in bundles for ticket in bundle.tickets) == Counter(list(by_id))
    for bundle in bundles:
        taken = [by_id[ticket.id] for ticket in bundle.tickets]
        assert {row.destination for row in taken} == {bundle.destination}
        assert taken == sorted(taken)
        assert 1 <= len(taken) <= SETTINGS.bundle_size_of(bundle.destination)
        assert len(taken) == 1 or not any(row.alone for row in taken)
    groups = len({row.destination for row in rows if not row.alone})
    for destination in SETTINGS.destinations:
        together = [row for row in rows if row.destination == destination and not row.alone]
        order = [t.id for b in bundles if b.destination == destination for t in b.tickets if not by_id[t.id].alone]
        assert order == [row.id for row in together]
        made = [b for b in bundles if b.destination == destination and not by_id[b.tickets[0].id].alone]
        size = min(SETTINGS.bundle_size_of(destination), ceil(len(together) / ceil(SPREAD / max(1, groups)))) or 1
        assert len(made) == ceil(len(together) / size)


def test_with_many_destinations_each_has_one_bundle() -> None:
    """Each bundle costs the same, however little it carries."""
    names = [f"to-{n}" for n in range(2 * SPREAD)]
    made = Settings(destinations={name: {"url": "a://b"} for name in names})
    rows = [claimed(n, names[n % len(names)]) for n in range(10 * len(names))]
    assert [bundle.destination for bundle in bundled(made, rows, "lease")] == names


@pytest.mark.parametrize(("queued", "share"), [(0, 50), (8_000, 20)])
def test_each_of_many_destinations_has_a_share_worth_a_bundle_if_there_is_room(queued: int, share: int) -> None:
    made = Settings(destinations={f"to-{n}": {"url": "a://b"} for n in range(100)})
    store: Any = SimpleNamespace(settings=made)
    assert _wanted(store, queued, made.max_in_flight) == dict.fromkeys(made.destinations, share)


def test_of_many_bundles_with_keys_the_last_and_some_before_it_wake_the_claim() -> None:
    rows = [claimed(n)._replace(key=f"k{n}") for n in range(10 * SETTINGS.bundle_size)]
    bundles = list(bundled(SETTINGS, rows, "lease"))
    assert [bundle.more for bundle in bundles] == [n % WAKING_OF_MANY == 1 for n in range(10)]


def test_of_few_bundles_with_keys_each_wakes_the_claim() -> None:
    bundles = list(bundled(SETTINGS, [claimed(n)._replace(key=f"k{n}") for n in range(4)], "lease"))
    assert [bundle.more for bundle in bundles] == [True] * len(bundles)


@pytest.mark.parametrize(
    ("urls", "flooding", "sizes"),
    [
        (["redis+stream://h/0/s"], {"d0"}, [250] * 4),
        (["redis+stream://h/0/s"], (), [100] * 10),
        (["a://b"], {"d0"}, [100] * 10),
        (["redis+stream://h/0/s", "a://b"], {"d0"}, [100] * 10),
    ],
    ids=["a stream alone", "not a flood", "no stream", "beside another"],
)
def test_a_flood_to_the_only_stream_goes_in_larger_bundles(
    urls: list[str], flooding: Container[str], sizes: list[int]
) -> None:
    made = Settings(destinations={f"d{n}": {"url": url} for n, url in enumerate(urls)})
    rows = [claimed(n, "d0") for n in range(1000)]
    bundles = bundled(made, rows, "lease", spread=1, flooding=flooding)
    assert [len(bundle.tickets) for bundle in bundles] == sizes
