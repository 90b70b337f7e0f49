"""How people find messages: each list in an order that stays, and no look reads a whole table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine

from outbox_tasks.model import Outcome
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from tests.conftest import Rows
from tests.integration.every_state import STATES, write
from tests.storage.conftest import Box
from tests.storage.people import Acting, Finding, Looked, Wanted
from tests.storage.relaying import Receiver, drained
from tests.storage.relaying import storage as storage
from tests.storage.test_acts import ANN, bury, entry, ids
from tests.storage.test_acts import acting as acting


@pytest.fixture
def finding(next_settings: Settings) -> Iterator[Finding]:
    made = Finding.connect(next_settings)
    yield made
    made.close()


def seqs(looked: Looked) -> list[int]:
    return [row.seq for row in looked.found]


SHOWN = {
    "ready": "pending", "ready again": "retrying", "scheduled": "scheduled", "waiting for a retry": "retrying",
    "out of reach": "retrying", "leased": "leased", "leased, run out": "pending", "begun": "leased",
    "begun again": "leased", "begun, run out": "retrying", "handed over": "handed over",
    "handed over, run out": "retrying", "running": "running", "running, run out": "retrying", "dead": "dead",
    "dead at once": "dead", "sent": "sent", "sent after a failure": "sent", "discarded": "discarded",
}  # fmt: skip


@pytest.fixture
def everywhere(box: Box, engine: Engine) -> dict[int, str]:
    """Messages in each place, with attempts and without: the state of each number."""
    rows = Rows(engine, box.schema)
    for place in STATES:
        write(rows, place, {})
    return {seq: SHOWN[place] for seq, place in enumerate(STATES, 1)}


class TestStates:
    """The state of a message is the same wherever it is said."""

    def test_in_the_view_in_lists_by_id_and_as_a_filter(
        self, box: Box, finding: Finding, everywhere: dict[int, str]
    ) -> None:
        assert dict(box.rows("SELECT seq, state FROM outbox_all")) == everywhere
        found = finding.messages(look=100).found
        assert {row.seq: row.state for row in found} == everywhere
        of_view = box.rows("SELECT seq, attempts, finished_at IS NULL, locked_by FROM outbox_all")
        assert {(row.seq, row.attempts, row.finished_at is None, row.locked_by) for row in found} == {*of_view}
        until = "SELECT seq, locked_until FROM outbox_all WHERE state IN ('scheduled', 'leased', 'running')"
        assert {(row.seq, row.locked_until) for row in found} >= {*box.rows(until)}
        at_work = {seq: state for seq, state in everywhere.items() if state not in ("sent", "discarded")}
        found = finding.at_work(look=100).found
        assert {row.seq: row.state for row in found} == at_work
        attempts = dict(box.rows("SELECT seq, attempts FROM outbox_at_work"))
        assert {row.seq: row.attempts for row in found} == attempts
        by_id = {row.id: row.state for row in finding.ask("find/states.sql", ids=ids(box))}
        assert by_id == dict(zip(ids(box), (everywhere[seq] for seq in sorted(everywhere)), strict=True))
        assert {id: finding.one(id)[0].state for id in ids(box)} == by_id
        for state in {*everywhere.values()} - {"discarded"}:
            own = [seq for seq in sorted(everywhere) if everywhere[seq] == state]
            wanted = Wanted(states=[state])
            assert seqs(finding.messages(wanted, newer=True, look=100)) == own
            if state != "sent":
                assert seqs(finding.at_work(wanted, look=100)) == own
                assert sum(row.count for row in finding.at_work(wanted, look=100, counted=True).found) == len(own)

    def test_what_came_later_is_left_out(self, box: Box, storage: Store, finding: Finding) -> None:
        for _ in range(2):
            bury(box, storage)
        for _ in range(2):
            box.write(1)
        at = box.value("SELECT dead_at FROM outbox_dead WHERE seq = 1")
        assert seqs(finding.dead(Wanted(until=at), look=100)) == [1]
        at = box.value("SELECT created_at FROM outbox_messages WHERE seq = 3")
        assert seqs(finding.at_work(Wanted(until=at, states=["pending"]), look=100)) == [3]
        assert max(seqs(finding.messages(Wanted(until=at), look=100))) == 3

    def test_of_a_page_that_ends_within_a_batch(self, box: Box, storage: Store, finding: Finding) -> None:
        box.write(40)
        drained(storage, Receiver())
        for [first] in box.rows("SELECT first FROM outbox_journal WHERE count > 1"):
            assert [row.state for row in finding.messages(last=first + 2, look=1).found] == ["sent"]


class TestOne:
    def test_shows_only_a_part_of_its_contents(self, box: Box, storage: Store, finding: Finding) -> None:
        box.write(1, text='{"a": 1}', headers={"eventid": "x", "secret": "y"})
        drained(storage, Receiver(lambda message: Outcome.dead("bad", "never")))
        [id] = ids(box)
        [whole] = finding.one(id)
        assert (whole.payload, whole.size, whole.headers["secret"], whole.attempts) == (b'{"a": 1}', 8, "y", 1)
        assert (whole.history[0]["what"], len(whole.group), whole.dead_at > whole.created_at) == ("dead", 12, True)
        [part] = finding.one(id, 3)
        assert part.payload == b'{"a'
        [nothing] = finding.one(id, 0)
        assert (nothing.payload, nothing.headers, nothing.history, nothing.size) == (None, {"eventid": "x"}, None, 8)

    def test_is_there_once_for_each_time_that_it_was_written(
        self, box: Box, storage: Store, finding: Finding, acting: Acting
    ) -> None:
        box.write(1)
        drained(storage, Receiver())
        copy = {"original": 1, "id": str(ids(box)[0]), "destination": "orders", "headers": {}}
        acting.replay([copy], {}, entry(box, "replay"), ANN)
        [id] = {id for [id] in box.rows("SELECT id FROM outbox_messages")}
        assert sorted(row.state for row in finding.one(id)) == ["pending", "sent"]
        assert [row.state for row in finding.ask("find/states.sql", ids=[id])] == ["pending", "sent"]

    def test_waits_for_the_first_of_its_key(self, box: Box, storage: Store, finding: Finding) -> None:
        box.write(3, key="a")
        box.write(1, key="b")
        drained(storage, Receiver(lambda message: Outcome.retry("busy", "later")))
        box.write(1, key="a")
        ahead = finding.ahead("a", 5, blocks=True)
        assert (ahead.id, ahead.state, ahead.count, ahead.last_error_code) == (ids(box, 1)[0], "retrying", 3, "busy")
        assert finding.ahead("a", 1, blocks=True) is None
        box.connection.execute("DELETE FROM outbox_held WHERE seq = 1")
        box.connection.execute("INSERT INTO outbox_dead (seq, destination, key, kin) VALUES (1, 'orders', 'a', 'x')")
        assert finding.ahead("a", 5, blocks=True).state == "dead"
        skipped = finding.ahead("a", 5, blocks=False)
        assert (skipped.id, skipped.count) == (ids(box, 2)[0], 2)

    @pytest.mark.parametrize("state", ["ready", "leased"])
    def test_waits_for_what_is_before_it(self, box: Box, finding: Finding, state: str) -> None:
        box.write(2, key="a")
        if state == "leased":
            box.connection.execute("DELETE FROM outbox_ready WHERE seq = 1")
            box.connection.execute(
                "WITH lease AS (INSERT INTO outbox_leases (token, locked_until, destination, holder, seqs)"
                " VALUES (gen_random_uuid(), now() + interval '9 s', 'orders', 'w', '{1}') RETURNING token)"
                " INSERT INTO outbox_keys (destination, key, token) SELECT 'orders', 'a', token FROM lease"
            )
        assert finding.ahead("a", 2, blocks=True).id == ids(box, 1)[0]


def test_what_became_of_a_redrive(box: Box, storage: Store, finding: Finding, acting: Acting) -> None:
    dead = bury(box, storage, 4)
    since = box.value("SELECT clock_timestamp()")
    acting.act_on("redrive", dead, ANN, entry(box))
    outcomes = iter([Outcome.sent(), Outcome.dead("bad", "never"), Outcome.retry("busy", "later")])
    drained(storage, Receiver(lambda message: next(outcomes, Outcome.sent())))
    became = {(row.state, row.code): row.count for row in finding.ask("find/became.sql", ids=dead, since=since)}
    assert became == {("sent", None): 2, ("dead", "bad"): 1, ("retrying", "busy"): 1}
    later = box.value("SELECT clock_timestamp()")
    assert {row.state for row in finding.ask("find/became.sql", ids=dead, since=later)} == {"dead", "retrying"}
