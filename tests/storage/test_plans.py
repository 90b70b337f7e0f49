"""The hops of a message reach their rows by index, however much else is in the tables.

Bounds are on the pages that PostgreSQL touches, not on time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import text

from outbox_tasks.model import Step, Verdict
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.claims import take
from tests.integration.conftest import after, bundle_of
from tests.storage.conftest import Box
from tests.storage.filled import as_the_relay, fill, fill_days, planned, prepared

SENT, WORK = 160_000, 40_000
LAST = SENT + WORK
END = str(2**63 - 1)
TOKEN = "00000000-0000-4000-8000-000000000001"


HOPS = """
claim/take.sql claim/lease.sql claim/look_keys.sql claim/wake.sql claim/expire.sql claim/due.sql claim/next_due.sql
claim/unroutable.sql claim/marks.sql deliver/gather.sql deliver/begin.sql deliver/sent.sql deliver/settle.sql
deliver/release.sql run/expire.sql run/handed_over.sql"""


def hops(box: Box) -> list[tuple[str, int, dict[str, Any]]]:
    """Each verb of the relay, the pages that it may touch, and its parameters: a hundred messages of `d1`."""
    [seqs] = box.rows("SELECT seqs[:100] FROM outbox_leases ORDER BY token LIMIT 1")[0]
    box.connection.execute("UPDATE outbox_leases SET token = %s, seqs = %s, begun_at = NULL", [TOKEN, seqs])
    box.connection.execute(
        "INSERT INTO outbox_leases (token, locked_until, begun_at, destination, holder, seqs) "
        "SELECT gen_random_uuid(), now() - interval '1 minute', now(), destination, 'gone', %s FROM outbox_leases "
        "WHERE token = %s",
        [seqs, TOKEN],
    )
    box.connection.execute("UPDATE outbox_held SET free = true WHERE seq % 1000 < 200")
    ids = [str(id) for [id] in box.rows("SELECT id FROM outbox_messages WHERE seq = ANY (%s)", seqs)]
    fence: dict[str, Any] = {"token": TOKEN, "destination": "d2"}
    known = ["d0", "d1", "d2", "d3"]
    span = {"destination": "d1", "size": 100, "priority": 0, "weight": 1, "xid": "0", "seq": 0, "until": END}
    window = {"destination": "d2", "size": 100, "longest": 10, "blocks": True, "start": 0}
    keyed = {"share": json.dumps([window]), "high": LAST, "first": 0, "since": "-infinity", "marks": "[]"}
    front = json.dumps([{"destination": "d1", "priority": 0, "xid": END, "seq": 0, "until": END}])
    started = [{"destination": "d1", "start": LAST}]
    due = {"front": front, "keyed": json.dumps(started), "since": "-infinity", "ahead": 1.0}
    failed = [{"id": id, "step": "outage", "attempt": 1, "wait": 1.0, "code": "away", "error": "gone"} for id in ids]
    bundle = [{"token": str(uuid4()), "destination": "d1", "seqs": list(range(LAST + 1, LAST + 101))}]
    return [
        ("claim/take.sql", 2000, {"span": json.dumps([span])}),
        ("claim/lease.sql", 200, {"bundle": json.dumps(bundle), "holder": "me", "hold": 60.0}),
        ("claim/look_keys.sql", 3000, keyed),
        ("claim/wake.sql", 200, {"most": 100}),
        ("claim/expire.sql", 400, {"most": 100, "messages": 1000, "since": "-infinity"}),
        ("claim/due.sql", 300, {**due, "known": known}),
        ("claim/next_due.sql", 50, {"ahead": 60.0}),
        ("claim/unroutable.sql", 300, {"grace": 3600.0, "most": 100, "look": 100, "past": "", "known": known}),
        ("claim/marks.sql", 50, {}),
        ("deliver/gather.sql", 400, {**fence, "token": str(uuid4()), "tokens": [str(uuid4()) for _ in range(25)]}),
        ("deliver/begin.sql", 2000, {**fence, "holder": "me", "hold": 40.0, "room": 9, "keep": 18.0}),
        ("deliver/sent.sql", 300, {**fence, "count": len(seqs)}),
        ("deliver/settle.sql", 6000, {**fence, "patience": 5, "said": json.dumps(failed)}),
        ("deliver/release.sql", 6000, {"token": TOKEN, "ids": ids, "wait": 0.0, "shut": False}),
        ("run/expire.sql", 200, {"most": 100}),
        (
            "run/handed_over.sql",
            300,
            {"soon": 9.0, "late": 30.0, "asked": '[{"destination": "d1", "queue": "celery"}]'},
        ),
    ]


@pytest.mark.parametrize("known", ["all", "nothing", "that they were empty"])
def test_a_hop_reads_no_table_from_its_beginning(box: Box, known: str) -> None:
    """Whatever the server knows of the tables. After a restore it knows nothing; and plans stay for some time that it
    made while they were empty."""
    as_the_relay(box)
    if known == "that they were empty":
        box.connection.execute("VACUUM ANALYZE")
        for verb in HOPS.split():
            prepared(box, verb)
    fill(box, SENT, WORK, analyzed=known == "all")
    asked = hops(box)
    assert [verb for verb, *_ in asked] == HOPS.split()
    for verb, most, parameters in asked:
        with box.connection.transaction(force_rollback=True):  # each finds what there is
            whole, pages = planned(box, verb, **parameters)
        assert (verb, whole, pages < most) == (verb, set(), True), pages


def test_of_thirty_days_none_is_read_from_its_beginning(box: Box) -> None:
    """The index of each day is asked for an id, and only the day of a number for that."""
    fill_days(box, 30, 3000)
    as_the_relay(box)
    died = "SELECT id FROM outbox_messages JOIN outbox_dead USING (seq) ORDER BY seq % 997 LIMIT 50"
    dead = [id for [id] in box.rows(died)]
    sent = box.value("SELECT id FROM outbox_messages WHERE seq = (3::bigint << 32) + 1")
    act = {"entry": 0, "person": "ann", "reason": None, "token": None, "duration": 0.0, "until": None, "ids": dead}
    body = {"message": dead[0], "body": b"{}", "kind": "application/json", "digest": hashlib.sha256(b"{}").digest()}
    asked: list[tuple[str, int, dict[str, Any]]] = [
        ("find/one.sql", 300, {"id": sent, "part": None, "start": 0}),
        ("find/states.sql", 1600, {"ids": dead}),
        ("find/named.sql", 600, {"ids": dead}),
        ("act/edit.sql", 300, {**body, "person": "ann", "reason": None}),
        ("act/discard.sql", 2200, {**act, "ids": dead[:25], "states": ["dead"], "kept": True}),
        ("act/redrive.sql", 1200, {**act, "ids": dead[25:]}),
    ]
    for verb, most, parameters in asked:
        whole, pages = planned(box, verb, **parameters)
        assert (verb, whole, pages < most) == (verb, set(), True), pages
    assert box.value("SELECT count(*) FROM outbox_dead") == 30 * 1500 - len(dead)


@pytest.mark.parametrize("analyzed", [True, False])
def test_the_backlog_of_many_is_counted_up_to_its_limit(box: Box, analyzed: bool) -> None:
    """By the pages that it reads: none for a paused destination."""
    fill(box, SENT, WORK, analyzed=analyzed)
    box.connection.execute("INSERT INTO outbox_destinations (name, paused_at) VALUES ('d3', now())")
    for arguments, most in (("", 1800), ("'d1'", 600), ("'d3'", 50), ("'nobody'", 50), ("'d1', 100", 100)):
        [[[plan]]] = box.rows(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT outbox_backlog({arguments})")
        pages = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
        assert pages < most, (arguments, pages)


@pytest.fixture
def store(next_settings: Settings) -> Iterator[Store]:
    made = Store.connect(next_settings.replace(destinations={"orders": {"url": "a://b"}}))
    yield made
    made.close()


def work(store: Store) -> None:
    """Claim a bundle, begin it, and settle half of it as sent."""
    lease = str(uuid4())
    bundle = bundle_of(take(store, {"orders": 100}, lease), lease)
    tickets = after(store.begin(bundle))
    store.settle(lease, "orders", [Verdict(ticket, Step.SENT) for ticket in tickets[:50]])
    store.settle(lease, "orders", [Verdict(ticket, Step.RELEASE, 60) for ticket in tickets[50:]])


def test_statements_prepared_while_the_tables_were_empty_stay_cheap(box: Box, store: Store) -> None:
    """What a worker does for days on one connection, by the server's own counters."""

    def read() -> Any:
        with store.engine.connect() as own:
            own.execute(text("SELECT pg_stat_force_next_flush()"))
        query = """
            SELECT sum(coalesce(idx_blks_read + idx_blks_hit, 0) + heap_blks_read + heap_blks_hit), sum(seq_tup_read)
            FROM pg_statio_user_tables JOIN pg_stat_user_tables t USING (relid) WHERE t.schemaname = %s"""
        return box.rows(query, box.schema)[0]

    for _ in range(10):  # psycopg prepares after 5, PostgreSQL decides for a generic plan after 5 more
        box.write(1)
        work(store)
    for _ in range(5):
        box.write(100)
        work(store)
    fill_behind(box)
    touched, scanned = read()
    for _ in range(5):
        work(store)
    touched_now, scanned_now = read()
    assert scanned_now - scanned < 5 * 500  # small tables
    # 500 messages with all that their 4 statements write; a single scan of the flood would be thousands more each.
    assert (touched_now - touched) / 500 < 80


def fill_behind(box: Box) -> None:
    """30,000 more messages for `orders`, as one writer writes them, and as many for another destination."""
    for name in ("orders", "mails"):
        for _ in range(3):
            box.write(10_000, destination=name)


def test_a_claim_is_planned_once(box: Box, store: Store) -> None:
    """A plan takes longer than a claim that finds nothing."""
    box.write(1, key="a")
    for _ in range(8):  # psycopg prepares after 5
        take(store, {"orders": 100}, str(uuid4()))
    with store.engine.connect() as connection:
        planned = "SELECT max(generic_plans), sum(custom_plans) FROM pg_prepared_statements"
        used, anew = connection.execute(text(planned)).one()
    assert used >= 2
    assert anew == 0
