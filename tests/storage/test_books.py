"""The books of each day: each message is in one place. And keys keep their order over the turn of a day."""

from __future__ import annotations

from typing import Any

import pytest

from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.relay.store import Store
from tests.storage.conftest import Box
from tests.storage.relaying import Receiver, drained, numbers
from tests.storage.relaying import storage as storage

DAY = 2**32


def turn(box: Box) -> None:
    """The turn of a day that began yesterday."""
    box.run("keep/turn.sql", ahead=2)
    box.connection.execute("UPDATE outbox_days SET date = date - 1 WHERE ended_at IS NULL")
    box.run("keep/turn.sql", ahead=2)


def fates(message: LeasedMessage) -> Outcome:
    """What the event type says becomes of a message."""
    outcomes = {
        "dies": Outcome.dead("bad", "no"),
        "fails": Outcome.retry("busy", "later"),
        "goes": Outcome.discarded("x", "y"),
    }
    return outcomes.get(message.event_type, Outcome.sent())


@pytest.fixture
def old(box: Box, storage: Store) -> Box:
    """Day 0 is over: 40 of its messages were sent and 2 discarded. 1 is a dead letter (41), and blocks the one after it
    (42); 1 is to be sent again (43), and 1 is scheduled (44). In day 1 is one message."""
    box.write(40)
    box.write(1, event_type="dies", key="a")
    box.write(1, key="a")
    box.write(1, event_type="fails")
    box.write(1, delay=3600)
    box.write(2, event_type="goes")
    drained(storage, Receiver(fates))
    turn(box)
    box.write(1)
    return box


class TestKeysOverATurn:
    def test_a_writer_of_yesterday_is_not_overtaken(self, box: Box, storage: Store) -> None:
        box.run("keep/turn.sql", ahead=2)
        with box.transaction() as early:
            box.write(1, on=early, key="a")
            turn(box)
            box.write(2, key="a")
            box.write(1, key="b")
            receiver = Receiver()
            drained(storage, receiver)
            assert numbers(box, receiver) == [DAY + 3]
            box.write(1, on=early, key="a")
            early.commit()
        receiver = Receiver()
        drained(storage, receiver)
        assert numbers(box, receiver) == [1, DAY + 1, DAY + 2, DAY + 4]
        box.check_books()

    @pytest.mark.parametrize("turned", [False, True])
    def test_a_mark_of_who_came_after_the_look_at_the_numbers_is_not_heeded(self, box: Box, turned: bool) -> None:
        """Else its floor would be below all numbers: all of its class would wait, and be read from the front again."""
        box.write(3)
        if turned:
            turn(box)
        last = box.value("SELECT last_value FROM outbox_seq")
        with box.transaction() as writer:
            mark = "SELECT pg_advisory_xact_lock_shared(outbox_key_class('orders', 'a') << 40 | (%s & 1099511627775))"
            writer.execute(mark, [last + 1])
            assert box.rows("SELECT * FROM outbox_open_writers()") == [(last, None, None)]
            writer.execute(mark, [max(last - DAY, 2)])
            [(_, _, floors)] = box.rows("SELECT * FROM outbox_open_writers()")
            assert floors == [max(last - DAY, 2)]


class TestBooks:
    def test_balance(self, old: Box) -> None:
        rows = [(row[0], *row[3:]) for row in old.run("look/books.sql")]
        assert rows == [(0, 46, 42, 0, 2, 1, 0, 0, 1, 0), (1, 1, 0, 1, 0, 0, 0, 0, 0, 0)]
        assert self.strays(old) == []

    @pytest.mark.parametrize(
        ("statement", "missing", "strays"),
        [
            ("DELETE FROM outbox_dead", 1, [(41, [], True)]),
            ("INSERT INTO outbox_dead (seq, kin, destination) VALUES (5, 'k', 'd')", -1, [(5, ["dead", "sent"], True)]),
            ("DELETE FROM outbox_messages WHERE seq = 44", -1, [(44, ["waiting"], False)]),
            ("UPDATE outbox_waiting SET seq = 7 WHERE seq = 43", 0, [(7, ["sent", "waiting"], True), (43, [], True)]),
            ("UPDATE outbox_journal SET seqs = seqs - '{[9,11)}', count = count - 2 WHERE seqs @> 9::bigint", 2,
             [(9, [], True), (10, [], True)]),
        ],
    )  # fmt: skip
    def test_that_do_not_balance_name_the_message(
        self, old: Box, statement: str, missing: int, strays: list[tuple[int, list[str], bool]]
    ) -> None:
        old.connection.execute(statement.encode())
        assert [row[-1] for row in old.run("look/books.sql")] == [missing, 0]
        assert self.strays(old) == strays

    def strays(self, box: Box) -> list[Any]:
        return list(box.run("look/strays.sql", first=0, last=2**63 - 1, most=10))
