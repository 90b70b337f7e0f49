"""Hops, looks and acts reach their rows by index, however much else is in the tables.

Bounds are on the pages that PostgreSQL touches and on the rows that loops compare, not on time.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from outbox_tasks.operating.messages.find import LAST_NUMBER
from outbox_tasks.supervised.store import Fence
from tests.storage.conftest import Box
from tests.storage.filled import as_the_relay, fill, fill_days, planned, prepared
from tests.storage.people import Wanted
from tests.supervised.verbs import begin_of

EVER = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)

SENT, WORK = 40_000, 20_000
BATCH, NAMES = 500, [f"x{n}" for n in range(200)]
TOKEN = "00000000-0000-4000-8000-000000000001"
SPAN = [{"priority": rank, "weight": 1, "xid": "0", "seq": 0, "until": str(2**63 - 1)} for rank in (1, 0, -1)]

Asked = list[tuple[str, int, dict[str, Any]]]
"""Verbs, the pages that each may touch, and its parameters."""

HOPS = """
claim/due.sql claim/take_keyless.sql claim/take_new.sql claim/take_held.sql claim/take_keyless_singly.sql
claim/take_keys_singly.sql claim/expire.sql claim/wake.sql claim/bury.sql deliver/begin.sql
deliver/sent.sql deliver/settle.sql supervised/expire.sql"""


def fill_hops(box: Box) -> list[int]:
    """New and held messages of 10,000 keys each for `d1`, some for each of 200 destinations, a lease of 500 messages
    of 500 keys, and 1,000 leases of ten that have run out. Returns the numbers of the 500."""
    last = SENT + WORK
    for count, columns, tables in (
        (20_000, "'d1', 'n' || mod(n, 10000)", "ready"),
        (20_000, "'d1', 'h' || mod(n, 10000)", "held"),
        (10_000, "'x' || mod(n, 200), CASE WHEN mod(n, 400) < 200 THEN 'n' || n END", "ready"),
        (BATCH, "'d1', 'l' || n", ""),
        (10_000, "'x1', 'e' || n", ""),
    ):
        numbers = f"FROM generate_series({last} + 1, {last} + {count}) AS n"
        for table, own, value in (
            ("messages", "event_type, payload", "'a', '{}'"),
            (tables, "since, size", "now() - interval '1 minute', 50"),
        ):
            if table:
                box.rows(
                    f"INSERT INTO outbox_{table} (seq, destination, key, {own}) SELECT n, {columns}, {value} {numbers} "
                    "RETURNING 1"
                )
        last += count
    first = last - 10_000 - BATCH + 1
    for statement in (
        "INSERT INTO outbox_keys (destination, key, token, due) "
        "SELECT 'd1', 'n' || n, gen_random_uuid(), 'infinity' FROM generate_series(0, 9999, 2) AS n",
        "INSERT INTO outbox_keys (destination, key, more) "
        "SELECT 'd1', 'h' || n, true FROM generate_series(0, 9999) AS n",
        "INSERT INTO outbox_leases (token, locked_until, destination, holder, seqs) SELECT "
        f"'{TOKEN}', now() + interval '1 hour', 'd1', 'w', array_agg(n) "
        f"FROM generate_series({first}, {first + BATCH - 1}) AS n",
        "INSERT INTO outbox_leases (token, locked_until, begun_at, destination, holder, seqs) "
        "SELECT gen_random_uuid(), now() - interval '1 minute', now(), 'x1', 'gone', array_agg(n) "
        f"FROM generate_series({first + BATCH}, {last}) AS n GROUP BY n / 10",
        "INSERT INTO outbox_keys (destination, key, token, due) SELECT m.destination, m.key, l.token, 'infinity' "
        "FROM outbox_leases l, unnest(l.seqs) AS s JOIN outbox_messages m ON m.seq = s WHERE m.key IS NOT NULL "
        f"AND s >= {first}",
        f"SELECT setval('outbox_seq', {last})",
    ):
        box.connection.execute(statement.encode())
    return list(range(first, first + BATCH))


def hops(seqs: list[int]) -> Asked:
    """Each verb of the relay, the pages that it may touch, and its parameters: batches of 500, a single of each of 200
    destinations, 1,000 messages of leases that have run out."""
    lease = {"token": TOKEN[:-1] + "2", "holder": "me", "hold": 60.0}
    batch = {**lease, "destination": "d1", "most": BATCH, "of_key": 100, "bytes": 1 << 22, "largest": 1 << 20}
    place = {"start": 0, "life": "", "reach": 2 * BATCH, "free_since": "-infinity", "blocks": True}
    free = json.dumps([{"destination": name, "most": 1, "span": SPAN} for name in NAMES])
    keyed = json.dumps([{"destination": name, "held": 1, "new": 1, **place} for name in NAMES])
    known = json.dumps([{"destination": name, "span": SPAN, **place} for name in NAMES])
    fence = {"token": TOKEN, "destination": "d1"}
    failed = [
        {"seq": seq, "step": "outage", "attempts": 1, "wait": 1.0, "code": "away", "error": "gone"} for seq in seqs
    ]
    verdict = {"blocks": True, "spared_outages": 5, "verdict": json.dumps(failed)}
    look = {"known": NAMES, "grace": 3600.0, "past": "", "look": 1000, "most": 100}
    return [
        ("claim/due.sql", 20_000, {"known": known, "most": 5, "others": 100, "past": ""}),
        ("claim/take_keyless.sql", 6000, {**batch, "span": json.dumps(SPAN)}),
        ("claim/take_new.sql", 18_000, {**batch, **place}),
        ("claim/take_held.sql", 18_000, {**batch, **place}),
        ("claim/take_keyless_singly.sql", 9000, {**lease, "share": free}),
        ("claim/take_keys_singly.sql", 15_000, {**lease, "share": keyed}),
        ("claim/expire.sql", 15_000, {"most": 1000, "messages": 1000, "since": "-infinity"}),
        ("claim/wake.sql", 200, {"most": 100}),
        ("claim/bury.sql", 5000, look),
        ("deliver/begin.sql", 4000, {**fence, "holder": "me", "hold": 40.0, "largest": 1 << 20}),
        ("deliver/sent.sql", 8000, {**fence, "keys": [f"l{seq}" for seq in seqs], "count": BATCH}),
        ("deliver/settle.sql", 18_000, {**fence, **verdict}),
        ("supervised/expire.sql", 200, {"most": 100}),
    ]


def check(box: Box, asked: Asked) -> None:
    """Each reads no table from its beginning, and few pages."""
    for verb, most, parameters in asked:
        with box.connection.transaction(force_rollback=True):  # each finds what there is
            whole, pages = planned(box, verb, **parameters)
        assert (verb, whole, pages < most) == (verb, set(), True), pages


@pytest.mark.parametrize("known", ["nothing", "that they were empty"])
def test_a_hop_reads_no_table_from_its_beginning(box: Box, known: str) -> None:
    """Whatever the server knows of the tables. After a restore it knows nothing; and plans stay for some time that it
    made while they were empty. No loop compares each row of a batch with each other one."""
    as_the_relay(box)
    if known == "that they were empty":
        box.connection.execute("VACUUM ANALYZE")
        for verb in HOPS.split():
            prepared(box, verb)
    fill(box, SENT, WORK, analyzed=False)
    asked = hops(fill_hops(box))
    assert [verb for verb, *_ in asked] == HOPS.split()
    check(box, asked)


def test_a_look_or_an_act_reads_no_table_from_its_beginning(box: Box) -> None:
    """Whatever the tables hold: 160,000 messages were sent, and 40,000 are at work."""
    sent, work = 160_000, 40_000
    fill(box, sent, work)
    as_the_relay(box)
    some = [id for [id] in box.rows("SELECT id FROM outbox_messages ORDER BY seq % 997 LIMIT 50")]
    last = box.rows("SELECT id FROM outbox_messages WHERE seq > %s", sent + work - 200)
    died = [id for [id] in box.rows("SELECT id FROM outbox_messages JOIN outbox_dead USING (seq)")]
    retried = "UPDATE outbox_trouble SET code = 'busy' WHERE code IS NULL"
    box.connection.execute(retried)
    waits = [id for [id] in box.rows("SELECT id FROM outbox_messages JOIN outbox_waiting USING (seq) LIMIT 500")]
    act: dict[str, Any] = {
        "ids": [id for [id] in last],
        "until": "infinity",
        "entry": 0,
        "person": "ann",
        "reason": None,
    }
    box.rows("SELECT brin_summarize_new_values('outbox_messages_0_aggregate_id_key_idx')")
    box.connection.execute(
        "INSERT INTO outbox_tallies SELECT date_trunc('minute', now()) - m * interval '1 minute', 'd' || n, o, 5 "
        "FROM generate_series(0, 359) m, generate_series(1, 100) n, unnest('{sent,retry}'::text[]) o"
    )
    course = {"width": 300, "spans": 36, "arrived": ["sent"], "failures": ["retry"], "destination": "d7"}
    blocking = json.dumps([{"destination": f"d{n}", "blocks": True} for n in range(4)])
    text: dict[str, Any] = {"id": None, "siblings": [], "low": None, "high": None, "most": 21}
    page = {**Wanted().said, "look": 500, "size": 51, "newer": False, "last": LAST_NUMBER}
    middle = {**page, "last": sent // 2}
    dead = {**page, "time": "infinity", "kin": None}
    asked: Asked = [
        ("find/messages.sql", 1000, page),
        ("find/messages.sql", 1000, middle),
        ("find/messages.sql", 1000, {**middle, "newer": True}),
        ("find/at_work.sql", 1500, page),
        ("find/at_work.sql", 1500, {**page, "newer": True, "last": sent + work // 2}),
        ("find/at_work.sql", 1500, {**page, "states": ["running", "leased"]}),
        ("find/aged.sql", 200, {"age": 90_000.0}),
        ("find/dead.sql", 3000, dead),
        ("find/dead.sql", 1000, {**dead, "destination": "d0"}),
        ("find/dead.sql", 1000, {**dead, "kin": "kin1"}),
        ("find/groups.sql", 300, {"past": "", "most": 10, "destination": None}),
        ("find/archived.sql", 9000, {**middle, "newer": True, "since": EVER[0], "to": EVER[1]}),
        ("find/originals.sql", 1500, {"seqs": list(range(1, 50))}),
        ("find/search.sql", 600, {**text, "text": "k100"}),
        ("find/search.sql", 300, {**text, "text": "nothing"}),
        ("find/search.sql", 300, {**text, "low": UUID(int=0), "high": UUID(int=2**128 - 1), "text": "nothing"}),
        ("find/search.sql", 300, {**text, "id": some[0], "siblings": some[:4], "text": str(some[0])}),
        ("act/discard.sql", 8000, {**act, "states": ["waiting"], "kept": True}),
        ("act/redrive.sql", 3000, {**act, "ids": died}),
        ("act/try.sql", 8000, {**act, "ids": waits}),
        ("find/ahead.sql", 500, {"destination": "d0", "key": "k100", "seq": LAST_NUMBER, "blocks": True}),
        ("look/counts.sql", 9000, {"destinations": ["d0", "d1", "d2", "d3"], "most": 100}),
        ("look/heads.sql", 3000, {"blocking": blocking, "most": 100}),
        ("look/held_keys.sql", 3000, {"blocking": blocking, "most": 100, "size": 5, "shut": ["d0"]}),
        ("look/present.sql", 300, {"known": ["d0"], "most": 100}),
        ("look/pages.sql", 100, {}),
        ("report/course.sql", 3000, course),
    ]
    check(box, asked)


def test_of_thirty_days_none_is_read_from_its_beginning(box: Box) -> None:
    """The index of each day is asked for an id, and only the day of a number for that."""
    fill_days(box, 30, 3000)
    as_the_relay(box)
    died = "SELECT id FROM outbox_messages JOIN outbox_dead USING (seq) ORDER BY seq % 997 LIMIT 50"
    dead = [id for [id] in box.rows(died)]
    sent = box.value("SELECT id FROM outbox_messages WHERE seq = (3::bigint << 32) + 1")
    box.connection.execute(
        "INSERT INTO outbox_runs (seq, state, locked_until, attempts, id, destination) "
        "SELECT seq, 'handed over', now() + interval '1 hour', 1, id, 'd1' FROM outbox_messages WHERE id = %s",
        [sent],
    )
    act = {
        "entry": 0,
        "person": "ann",
        "reason": None,
        "token": None,
        "duration": 0.0,
        "until": "infinity",
        "ids": dead,
    }
    body = {"message": dead[0], "body": b"{}", "kind": "application/json", "digest": hashlib.sha256(b"{}").digest()}
    asked: Asked = [
        ("find/one.sql", 300, {"ids": [sent], "part": None, "start": 0}),
        ("find/states.sql", 1600, {"ids": dead}),
        ("find/named.sql", 600, {"ids": dead}),
        ("act/edit.sql", 300, {**body, "person": "ann", "reason": None}),
        ("act/discard.sql", 2200, {**act, "ids": dead[:25], "states": ["dead"], "kept": True}),
        ("act/redrive.sql", 1200, {**act, "ids": dead[25:]}),
        ("supervised/whereabouts.sql", 300, {"ids": [sent]}),
        ("supervised/completed.sql", 300, {"id": str(sent), "committed": True}),
        ("supervised/begin.sql", 300, begin_of(Fence(str(sent), str(sent)))),
    ]
    check(box, asked)


def test_the_backlog_of_many_is_counted_up_to_its_limit(box: Box) -> None:
    """By the pages that it reads: none for a paused destination."""
    fill(box, 10_000, 40_000)
    box.connection.execute("INSERT INTO outbox_destinations (name, paused_at) VALUES ('d3', now())")
    for arguments, most in (("", 1800), ("'d1'", 600), ("'d3'", 50), ("'nobody'", 50), ("'d1', 100", 100)):
        [[[plan]]] = box.rows(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT outbox_backlog({arguments})")
        pages = plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"]
        assert pages < most, (arguments, pages)
