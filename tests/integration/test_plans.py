"""The claim, the begin and the settle reach their rows by index, however much else is in the table.

Bounds are on the pages that PostgreSQL touches, not on time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import Connection, Engine, func, insert, literal, select, text
from sqlalchemy.sql import ClauseElement, Executable

from outbox_tasks.database import begin, claim, claim_keys, due, lost_tasks, settle
from outbox_tasks.model import Step, Verdict
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.conftest import Rows, make_tables, own_schema, seconds_from_now
from tests.integration.conftest import after, bundle_of

PENDING, LEASED = 30_000, 15_000
DUE, KEYS, BY_ID = "outbox_messages_due", "outbox_messages_keys", "outbox_messages_pkey"
BY_PLACE = "Tid Scan"
"""How a claim finds the rows that it has just locked."""


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def explained(store: Store, statement: Executable, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes of the plan, the first with the pages of all; it was run, and rolled back."""
    assert isinstance(statement, ClauseElement)
    compiled = statement.compile(dialect=store.engine.dialect)
    with store.engine.connect() as connection:
        connection.exec_driver_sql("BEGIN")
        plan = connection.exec_driver_sql(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}", compiled.construct_params(parameters)
        ).scalar_one()
        connection.exec_driver_sql("ROLLBACK")
    return list(nodes(plan[0]["Plan"]))


def pages(plan: list[dict[str, Any]]) -> int:
    return int(plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"])


def scans(plan: list[dict[str, Any]]) -> dict[str, str]:
    """How outbox_messages is read: the index (or the kind of scan) and its condition."""
    return {
        node.get("Index Name", node["Node Type"]): node.get("Index Cond", "")
        for node in plan
        if node.get("Relation Name") == "outbox_messages" and node["Node Type"] != "ModifyTable"
    }


def claim_100(store: Store) -> list[dict[str, Any]]:
    parameters = {
        "share": '[{"destination": "orders", "size": 100, "ceiling": 20}]',
        "token": UUID(int=1),
        "holder": "me",
        "hold": 60.0,
    }
    return explained(store, claim.claim(store.tables), parameters)


FEW = {"outbox_destinations_pkey", "outbox_slots_pkey"}
"""Tables of a row for each destination in trouble and for each send at once, looked at once in a statement."""


def flood(rows: Rows) -> None:
    """Leased rows at the head, then a backlog."""
    rows.insert(LEASED, lease=UUID(int=9), locked_until=seconds_from_now(3600))
    rows.insert(PENDING)


@pytest.fixture(scope="module")
def flooded(engine: Engine, postgres_url: str) -> Iterator[Store]:
    """A store over a flood, for all tests that leave it as it is, but for a few leases and rows."""
    with own_schema(engine) as schema:
        make_tables(engine, schema)
        flood(Rows(engine, schema))
        destinations = {"orders": {"url": "a://b"}}
        made = Store.connect(Settings(database_url=postgres_url, database_schema=schema, destinations=destinations))
        yield made
        made.close()


def analyze(engine: Engine, store: Store) -> None:
    with engine.begin() as connection:
        connection.execute(text(f"ANALYZE {store.tables.messages}"))


def test_a_claim_costs_no_more_in_a_flood(store: Store, rows: Rows, engine: Engine) -> None:
    """Before and after the table is analyzed."""
    rows.insert(100)
    small = claim_100(store)
    flood(rows)
    large = claim_100(store)
    analyze(engine, store)
    for plan in (small, large, analyzed := claim_100(store)):
        read = scans(plan)
        assert read.keys() == {DUE, BY_PLACE}
        assert "destination = " in read[DUE]
        assert "locked_until <= now()" in read[DUE]
    assert max(pages(large), pages(analyzed)) <= 2 * pages(small)


def test_statements_prepared_while_the_table_was_empty_stay_cheap(
    store: Store, rows: Rows, connection: Connection
) -> None:
    """What a worker does for days on one connection, by the server's own counters."""

    def work() -> None:
        lease = str(uuid4())
        if claimed := store.claim({"orders": 100}, lease):
            bundle = bundle_of(claimed, lease)
            tickets = after(store.begin(bundle))
            store.settle(lease, "orders", [Verdict(t, Step.SENT) for t in tickets[:50]])
            store.settle(lease, "orders", [Verdict(t, Step.RELEASE, 60) for t in tickets[50:]])

    def read() -> Any:
        with store.engine.connect() as own:
            own.execute(text("SELECT pg_stat_force_next_flush()"))
        connection.rollback()
        return connection.execute(
            text(
                "SELECT idx_blks_read + idx_blks_hit + heap_blks_read + heap_blks_hit, seq_tup_read "
                "FROM pg_statio_user_tables JOIN pg_stat_user_tables USING (relid) WHERE relid = CAST(:t AS regclass)"
            ),
            {"t": str(rows.tables.messages)},
        ).one()

    for _ in range(10):  # psycopg prepares after 5, PostgreSQL decides for a generic plan after 5 more
        rows.insert(1)
        work()
    for _ in range(5):
        rows.insert(100)
        work()
    flood(rows)
    touched, scanned = read()
    for _ in range(5):
        work()
    touched_now, scanned_now = read()
    assert scanned_now == scanned
    # 500 messages with all that their 4 statements write; a single scan of the flood would be thousands more each.
    assert (touched_now - touched) / 500 < 80


def test_a_claim_is_planned_once(store: Store, rows: Rows) -> None:
    """A plan takes longer than a claim that finds nothing."""
    rows.insert(1, key="a")
    for _ in range(8):  # psycopg prepares after 5
        store.claim({"orders": 100}, str(uuid4()))
    with store.engine.connect() as connection:
        planned = "SELECT max(generic_plans), sum(custom_plans) FROM pg_prepared_statements"
        used, anew = connection.execute(text(planned)).one()
    assert used >= 2
    assert anew == 0


def test_begin_and_settle_look_each_message_up_by_its_id(flooded: Store, engine: Engine) -> None:
    """Before and after the table is analyzed."""
    check_lookups(flooded, UUID(int=1))
    analyze(engine, flooded)
    check_lookups(flooded, UUID(int=2))


def check_lookups(store: Store, lease: UUID) -> None:
    claimed = store.claim({"orders": 100}, str(lease))
    assert len(claimed) == 100
    rows_of = "[{}]".format(", ".join(f'{{"id": "{c.id}", "attempt": 0, "hold": 1}}' for c in claimed))
    parameters = {"ticket": rows_of, "token": lease, "holder": "me", "hold": 40.0, "target": "orders", "patience": 5}
    parameters |= {"sender": UUID(int=2), "room": None, "keep": 18.0}
    parameters |= {"ids": f"{{{','.join(c.id for c in claimed)}}}", "attempt": 0}
    for statement in (
        *(begin.begin(store.tables, alike=alike) for alike in (True, False)),
        *(settle.settle_done(store.tables, archive=True, alike=alike) for alike in (True, False)),
        *(settle.settle_done(store.tables, archive=False, alike=alike) for alike in (True, False)),
        settle.settle_failed(store.tables),
        begin.release(store.tables),
    ):
        plan = explained(store, statement, parameters)
        assert scans(plan).keys() - FEW == {BY_ID}, statement
        assert scans(plan)[BY_ID].startswith("(id = ANY "), statement
        assert pages(plan) < 100 * 60


def test_looking_for_unknown_destinations_reads_next_to_nothing(flooded: Store) -> None:
    plan = explained(flooded, claim.bury_unroutable(flooded.tables), {"known": ["orders"], "grace": 3600.0})
    assert set(scans(plan)) <= {DUE, KEYS, BY_ID}
    assert pages(plan) < 50


def test_looking_for_lost_tasks_reads_only_those_that_are_handed_over(flooded: Store, engine: Engine) -> None:
    store = flooded
    rows = Rows(engine, store.settings.database_schema)
    rows.insert(10, handed_at=seconds_from_now(-9), locked_until=seconds_from_now(60))
    t, soon = store.tables, {"soon": 10.0}
    of_it = {"target": "orders", "queue": "celery", "made": "celery"}
    asked = json.dumps([{"destination": "orders", "queue": "celery"}])
    for statement, parameters in (
        (lost_tasks.handed_over(t), {"asked": asked, **soon}),
        (lost_tasks.end_waits(t), {**of_it, "before": datetime.now(UTC), "sure": 2.0}),
        (lost_tasks.wait_on(t), {**of_it, **soon, "within": 60.0}),
    ):
        plan = explained(store, statement, parameters)
        assert scans(plan).keys() <= {"outbox_messages_handed", BY_ID}
        assert pages(plan) < 200


def test_asking_whether_or_when_anything_is_due_reads_next_to_nothing(store: Store, rows: Rows) -> None:
    rows.insert(PENDING, locked_until=seconds_from_now(3600))
    rows.insert(LEASED, key="order:1", status="dead", dead_at=seconds_from_now(-1))
    for statement in (due.anything_due(store.tables), due.next_due(store.tables)):
        plan = explained(store, statement, {"ahead": 60.0})
        assert set(scans(plan)) <= {DUE, KEYS}
        assert pages(plan) < 50


@pytest.mark.parametrize("analyzed_before", [True, False])
def test_looking_for_keys_reads_next_to_nothing(
    store: Store, rows: Rows, connection: Connection, analyzed_before: bool
) -> None:
    """Also with statistics of a time when no message had a key."""
    if analyzed_before:
        rows.insert(1000)
        connection.execute(text(f"ANALYZE {rows.tables.messages}"))
        connection.execute(text(f"TRUNCATE {rows.tables.messages}"))
        connection.commit()
    m = rows.tables.messages
    keys = select(literal("orders"), func.concat("k", func.generate_series(1, PENDING)), literal("e"), literal(b"{}"))
    with rows.engine.begin() as writing:
        writing.execute(insert(m).from_select(["destination", "key", "event_type", "payload"], keys))
    plan = explained(
        store, claim_keys.horizon(store.tables), {"asked": '[{"destination": "orders"}, {"destination": "b"}]'}
    )
    assert pages(plan) < 50


@pytest.mark.parametrize("past", [None, "k2"])
def test_a_claim_of_keys_reads_no_more_than_it_asks_for(store: Store, rows: Rows, past: str | None) -> None:
    m = rows.tables.messages
    keys = select(literal("orders"), func.concat("k", func.generate_series(1, PENDING)), literal("e"), literal(b"{}"))
    with rows.engine.begin() as writing:
        writing.execute(insert(m).from_select(["destination", "key", "event_type", "payload"], keys))
    share = {"destination": "orders", "size": 5, "ceiling": 20, "longest": 5, "blocks": True, "past": past, "beyond": 0}
    parameters = {"share": json.dumps([share]), "token": UUID(int=1), "holder": "me", "hold": 60.0, "high": 2**40}
    plan = explained(store, claim_keys.claim_keys(store.tables), {**parameters, "marks": "[]"})
    assert set(scans(plan)) <= {KEYS, BY_ID, BY_PLACE}
    assert pages(plan) < 300
