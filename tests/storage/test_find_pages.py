"""No look at messages, and no act on them, reads a whole table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from outbox_tasks.operating.messages.find import LAST_NUMBER
from outbox_tasks.supervised.store import Run
from tests.storage.conftest import Box
from tests.storage.filled import as_the_relay, fill, planned
from tests.storage.people import Wanted
from tests.storage.relaying import storage as storage
from tests.storage.test_find import finding as finding
from tests.supervised.verbs import begin_of

EVER = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)


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
        box.rows("SELECT brin_summarize_new_values('outbox_messages_0_aggregate_id_key_idx')")
        text: dict[str, Any] = {"id": None, "siblings": [], "low": None, "high": None, "most": 21}
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
            ("find/one.sql", 100, {"ids": some[:1], "part": None}),
            ("find/search.sql", 600, {**text, "text": "k100"}),
            ("find/search.sql", 300, {**text, "text": "nothing"}),
            ("find/search.sql", 300, {**text, "low": UUID(int=0), "high": UUID(int=2**128 - 1), "text": "nothing"}),
            ("find/search.sql", 300, {**text, "id": some[0], "siblings": some[:4], "text": str(some[0])}),
            ("find/elsewhere.sql", 300, {}),
            ("act/discard.sql", 8000, {**act, "states": ["waiting"], "kept": True}),
            ("act/redrive.sql", 3000, {**act, "ids": died}),
            ("act/try.sql", 8000, {**act, "ids": waits}),
            ("find/ahead.sql", 500, {"destination": "d0", "key": "k100", "seq": LAST_NUMBER, "blocks": True}),
        )
        for verb, most, parameters in asked:
            whole, pages = planned(box, verb, **parameters)
            assert (verb, whole, pages < most) == (verb, set(), True), pages

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
