"""People act on messages of many keys at once, while relays take and settle them."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import pytest

from outbox_tasks.model import LeasedMessage, Outcome
from outbox_tasks.relay.store import Store
from tests.conftest import MakeSettings, eventually
from tests.storage.conftest import Box
from tests.storage.people import Acting
from tests.storage.relaying import Receiver, drained, numbers
from tests.storage.test_acts import ANN, entry

IDS = "SELECT id FROM outbox_messages JOIN outbox_{} USING (seq)"
RETRYING = "SELECT id FROM outbox_at_work WHERE state = 'retrying'"
KEYS, MESSAGES = 8, 120


def entry_by(connection: Any) -> int:
    """A new entry of the audit."""
    begun = "INSERT INTO outbox_audit (who, action, count) VALUES ('ann', 'try', 0) RETURNING seq"
    return int(connection.execute(begun).fetchone()[0])


@pytest.mark.parametrize("on_dead", ["block", "skip"])
def test_acts_and_relays_share_the_keys(box: Box, settings: MakeSettings, on_dead: str) -> None:
    """Whole batches are redriven, discarded, cancelled, and tried: what has failed waits until a person tries it. Each
    message ends once, no key is left busy, and if dead letters hold up their keys, nothing overtakes."""
    chance, answering = random.Random(0), threading.Lock()
    destination: dict[str, Any] = {"url": "redis+stream://localhost/x", "on_dead": on_dead}
    given = settings(database_schema=box.schema, destinations={"orders": destination}, backoff_base=0.05)

    def answer(message: LeasedMessage) -> Outcome:
        with answering:
            fate = chance.random()
        if fate < 0.3:
            return Outcome.dead("bad", "never")
        return Outcome.retry("busy", "later", retry_after=900) if fate < 0.4 else Outcome.sent()

    class Taking(Receiver):
        def publish(self, messages: Any) -> list[Outcome]:
            outcomes, stopped = [], set()
            for message in messages:
                outcome = Outcome.behind() if message.key in stopped else answer(message)
                if outcome.result != "sent" and (on_dead == "block" or outcome.result == "retry"):
                    stopped.add(message.key)
                outcomes.append(outcome)
            with answering:
                self.got += [m for m, outcome in zip(messages, outcomes, strict=True) if outcome.result == "sent"]
            return outcomes

    receiver, over = Taking(), threading.Event()
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(Store.connect(given))) for _ in range(2)]
        people = [stack.enter_context(closing(Acting.connect(given))) for _ in range(3)]
        numbers_of = {action: entry(box, action) for action in ("redrive", "discard", "try")}

        def relay(store: Store) -> None:
            while not over.is_set():
                drained(store, receiver)

        def act(acting: Acting, action: Any) -> None:
            own = random.Random(1)
            with closing(Box(box.url, box.schema).connection) as looking:
                while not over.is_set():
                    chosen = [id for (id,) in looking.execute(RETRYING if action == "try" else IDS.format("dead"))]
                    own.shuffle(chosen)
                    if action == "discard":
                        chosen = chosen[: len(chosen) // 20]
                    # An act tries each message once.
                    number = entry_by(looking) if action == "try" else numbers_of[action]
                    acting.act_on(action, chosen, ANN, number)

        def cancel() -> None:
            own = random.Random(1)
            with closing(Box(box.url, box.schema).connection) as looking:
                while not over.wait(0.05):
                    held = [id for (id,) in looking.execute(IDS.format("held"))]
                    looking.execute("SELECT outbox_cancel(%s)", [own.sample(held, len(held) // 30)])

        def all_ended() -> bool:
            return bool(box.value("SELECT coalesce(sum(count), 0) = %s FROM outbox_journal", MESSAGES))

        with ThreadPoolExecutor(6) as pool:
            running = [pool.submit(relay, store) for store in stores]
            running += [pool.submit(act, one, what) for one, what in zip(people, numbers_of, strict=True)]
            running.append(pool.submit(cancel))
            try:
                for _ in range(MESSAGES):
                    box.write(1, key=f"k{chance.randrange(KEYS)}")
                eventually(lambda: all_ended() or any(one.done() for one in running), 45)
            finally:
                over.set()
            for one in running:
                one.result(30)
    assert all_ended()
    got = numbers(box, receiver)
    assert len(got) == len(set(got)) == box.value("SELECT sum(count) FROM outbox_journal WHERE state = 'sent'")
    if on_dead == "block":
        of_keys: dict[str | None, list[int]] = defaultdict(list)
        for number, message in zip(got, receiver.got, strict=True):
            of_keys[message.key].append(number)
        assert {key: own for key, own in of_keys.items() if own != sorted(own)} == {}
    assert box.rows("SELECT key, token FROM outbox_keys WHERE token IS NOT NULL") == []
    box.check_books()
