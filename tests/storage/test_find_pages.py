"""Lists of messages page by page: none comes twice, none is left out, and no look reads a whole table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import psycopg.sql
import pytest

from outbox_tasks.operating.messages.find import LAST_NUMBER
from outbox_tasks.relay.store import Store
from outbox_tasks.supervised.store import Run
from tests.storage.conftest import Box
from tests.storage.filled import as_the_relay, fill, planned
from tests.storage.people import Finding, Looked, Wanted
from tests.storage.relaying import Receiver, drained
from tests.storage.relaying import storage as storage
from tests.storage.test_find import finding as finding
from tests.storage.test_find import seqs
from tests.supervised.verbs import begin_of

EVER = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


def walked(look: Any, newer: bool, size: int, beyond: Any = None) -> list[int]:
    """The numbers of all pages from one side to the other."""
    found: list[int] = []
    while True:
        page = look(newer, beyond, size)
        found += seqs(page)
        if len(page.found) == size:
            beyond = page.found[-1]
        elif page.end.end_seq is None:
            return found
        else:
            beyond = page.end


def _dead(finding: Finding, **wanted: Any) -> Any:
    def look(newer: bool, beyond: Any, size: int) -> Looked:
        place = {"time": getattr(beyond, "end_time", None) or beyond.dead_at, "last": _seq(beyond)} if beyond else {}
        return finding.dead(newer=newer, look=7, size=size, **place, **wanted)

    return look


def _seq(place: Any) -> int:
    return int(place.seq if place.seq is not None else place.end_seq)


class TestPages:
    @pytest.mark.parametrize("newer", [True, False])
    @pytest.mark.parametrize("size", [3, 10])
    def test_of_dead_letters_that_died_at_the_same_time(
        self, box: Box, finding: Finding, newer: bool, size: int
    ) -> None:
        fill(box, 0, 20_000)
        box.connection.execute("UPDATE outbox_dead SET dead_at = '2026-01-01' WHERE seq % 3 > 0")
        for where, wanted in (("true", {}), ("kin = 'kin3'", {"kin": "kin3"})):
            order = f"SELECT seq FROM outbox_dead WHERE {where} ORDER BY dead_at, seq"
            own = [seq for [seq] in box.rows(order)]
            assert walked(_dead(finding, **wanted), newer, size) == (own if newer else own[::-1])

    @pytest.mark.parametrize("newer", [True, False])
    def test_of_work_with_gaps(self, box: Box, finding: Finding, newer: bool) -> None:
        for gap in (0, 3, 100, 50_000, 3_000_000):
            box.rows("SELECT setval('outbox_seq', nextval('outbox_seq') + %s)", gap)
            box.write(4)
            box.write(2, key="a")
            box.write(2, destination="mails", priority="high")
            with psycopg.connect(box.url) as other:  # the order of transactions is not that of numbers
                box.write(1, on=other)
                box.write(3)
                box.write(1, on=other)
        own = [seq for [seq] in box.rows("SELECT seq FROM outbox_messages ORDER BY seq")]

        def look(newer: bool, beyond: Any, size: int) -> Looked:
            return finding.at_work(newer=newer, last=beyond and _seq(beyond), look=5, size=size)

        for size in (2, 10):
            assert walked(look, newer, size) == (own if newer else own[::-1])

    def test_of_all_messages_while_they_are_sent(self, box: Box, storage: Store, finding: Finding) -> None:
        box.write(60)

        def look(newer: bool, beyond: Any, size: int) -> Looked:
            box.write(1)
            drained(storage, Receiver())
            return finding.messages(newer=newer, last=beyond and _seq(beyond), look=9, size=size)

        assert walked(look, False, 7) == list(range(61, 0, -1))

    def test_says_where_a_look_ended(self, box: Box, finding: Finding) -> None:
        box.write(10)
        for looked in (
            finding.messages(Wanted(key="x"), look=4),
            finding.at_work(Wanted(code="x"), newer=False, look=4),
        ):
            assert (seqs(looked), looked.end.looked, looked.end.end_seq) == ([], 4, 7)
            assert looked.end.created_at == box.value("SELECT created_at FROM outbox_messages WHERE seq = 7")
        assert finding.messages(look=11).end.end_seq is finding.at_work(look=11).end.end_seq is None


class TestPlans:
    """Looks and acts read few rows, whatever the tables hold: 160,000 messages were sent, and 40,000 are at work."""

    SENT, WORK = 160_000, 40_000

    def test_read_no_table_from_its_beginning(self, box: Box) -> None:
        fill(box, self.SENT, self.WORK)
        as_the_relay(box)
        some = [id for [id] in box.rows("SELECT id FROM outbox_messages ORDER BY seq % 997 LIMIT 50")]
        last = box.rows("SELECT id FROM outbox_messages WHERE seq > %s", self.SENT + self.WORK - 200)
        died = [id for [id] in box.rows("SELECT id FROM outbox_messages JOIN outbox_dead USING (seq)")]
        retried = "UPDATE outbox_trouble SET code = 'busy' WHERE code IS NULL"
        box.connection.execute(retried)
        waits = [id for [id] in box.rows("SELECT id FROM outbox_messages JOIN outbox_waiting USING (seq) LIMIT 500")]
        act: dict[str, Any] = {"ids": [id for [id] in last], "until": None, "entry": 0, "person": "ann", "reason": None}
        act |= {"token": None, "duration": 0.0}
        box.rows("SELECT brin_summarize_new_values('outbox_messages_0_aggregate_id_key_idx')")
        text: dict[str, Any] = {"id": None, "siblings": [], "low": None, "high": None, "most": 21}
        payload: dict[str, Any] = {"text": "payload", "part": 65_536, "size": 21}
        page = {**Wanted().said, "look": 500, "size": 51, "newer": False, "last": LAST_NUMBER}
        middle = {**page, "last": self.SENT // 2}
        dead = {**page, "time": "infinity", "kin": None}
        asked: Sequence[tuple[str, int, dict[str, Any]]] = (
            ("find/messages.sql", 1000, page),
            ("find/messages.sql", 1000, middle),
            ("find/messages.sql", 1000, {**middle, "newer": True}),
            ("find/at_work.sql", 1500, page),
            ("find/at_work.sql", 1500, {**page, "newer": True, "last": self.SENT + self.WORK // 2}),
            ("find/at_work.sql", 1500, {**page, "states": ["running", "leased"]}),
            ("find/aged.sql", 200, {"age": 90_000.0, "until": None}),
            ("find/dead.sql", 3000, dead),
            ("find/dead.sql", 1000, {**dead, "destination": "d0"}),
            ("find/dead.sql", 1000, {**dead, "kin": "kin1"}),
            ("find/groups.sql", 300, {"past": "", "most": 10, "destination": None}),
            ("find/archived.sql", 9000, {**middle, "newer": True, "since": EVER[0], "to": EVER[1]}),
            ("find/states.sql", 2000, {"ids": some}),
            ("find/named.sql", 1500, {"ids": some}),
            ("find/originals.sql", 1500, {"seqs": list(range(1, 50))}),
            ("find/one.sql", 100, {"ids": some[:1], "part": None, "start": 0}),
            ("find/search.sql", 600, {**text, "text": "k100"}),
            ("find/search.sql", 300, {**text, "text": "nothing"}),
            ("find/search.sql", 300, {**text, "low": UUID(int=0), "high": UUID(int=2**128 - 1), "text": "nothing"}),
            ("find/search.sql", 300, {**text, "id": some[0], "siblings": some[:4], "text": str(some[0])}),
            ("find/payloads.sql", 500, {**payload, "seqs": None, "last": self.SENT, "look": 1000}),
            ("find/payloads.sql", 1000, {**payload, "seqs": list(range(1, 200)), "last": LAST_NUMBER, "look": 0}),
            ("find/elsewhere.sql", 300, {}),
            ("act/discard.sql", 8000, {**act, "states": ["waiting"], "kept": True}),
            ("act/redrive.sql", 3000, {**act, "ids": died}),
            ("act/try.sql", 8000, {**act, "ids": waits}),
            ("find/ahead.sql", 500, {"destination": "d0", "key": "k100", "seq": LAST_NUMBER, "blocks": True}),
        )
        for verb, most, parameters in asked:
            whole, pages = planned(box, verb, **parameters)
            assert (verb, whole, pages < most) == (verb, set(), True), pages
        _, pages = planned(box, "find/working.sql", most=200)
        assert pages < 400

    def test_of_a_run_read_no_table_from_its_beginning_when_there_are_many_days(self, box: Box) -> None:
        for day in range(3, 31):
            for name in ("messages", "journal"):
                days = f"FOR VALUES FROM ({day << 32}) TO ({(day + 1) << 32})"
                table = f"CREATE TABLE outbox_{name}_{day} PARTITION OF outbox_{name} {days}"
                box.connection.execute(table.encode())
        fill(box, self.SENT, self.WORK)
        id = str(box.value("SELECT id FROM outbox_messages WHERE seq = %s", self.SENT + self.WORK - 1))
        asked: Sequence[tuple[str, dict[str, Any]]] = (
            ("supervised/whereabouts.sql", {"ids": [id]}),
            ("supervised/completed.sql", {"id": id, "committed": True}),
            ("supervised/begin.sql", begin_of(Run(id, id))),
        )
        for verb, parameters in asked:
            whole, pages = planned(box, verb, **parameters)
            assert (verb, whole, pages < 100) == (verb, set(), True), pages
