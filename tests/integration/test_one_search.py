"""One search: what people have in hand of a message leads to it, and what is not found says what it may be."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from outbox_tasks.database import sql
from outbox_tasks.errors import InvalidFilter
from outbox_tasks.model import sibling, uuid7
from outbox_tasks.operating.messages import search as module
from outbox_tasks.operating.messages.search import search
from outbox_tasks.relay.store import Store
from tests.conftest import MakeStore, Rows, eventually, seconds_from_now
from tests.integration.conftest import Command

TASK = str(uuid4())


def found(store: Store, text: str) -> dict[str, list[str]]:
    """What the text is to which messages."""
    return {str(message["id"]): message["kinds"] for message in search(store, text).messages}


def written(rows: Rows, *, sent: bool, **columns: Any) -> str:
    [id] = rows.insert(**columns)
    if sent:
        rows.settle(id)
    return id


@pytest.mark.parametrize("sent", [False, True], ids=["at work", "archived"])
def test_each_name_leads_to_its_message(new_store: MakeStore, rows: Rows, sent: bool) -> None:
    store = new_store(destinations={name: {"url": "a://b"} for name in ("orders", "mails")})
    event = uuid7()
    order = written(rows, sent=sent, id=event, key="order:4711", aggregate_type="order", aggregate_id="4711")
    mail = written(rows, sent=sent, id=sibling(event, "mails"), destination="mails")
    task = written(rows, sent=sent, aggregate_type="celery.task", aggregate_id=TASK)
    assert found(store, "order:4711") == {order: ["key"]}
    assert found(store, " 4711 ") == {order: ["aggregate"]}
    assert found(store, TASK.upper()) == {task: ["task"]}
    assert found(store, mail) == {mail: ["id"]}
    assert found(store, str(event)) == {order: ["id"], mail: ["event"]}
    assert search(store, str(event)).only == event
    assert search(store, TASK).only == UUID(task)
    for length in (8, 9, 13, 30, 35):
        assert {order: ["beginning"]}.items() <= found(store, str(event)[:length]).items(), length
    for nothing in ("order:471", "order:4711%", str(event)[:7], str(uuid4()), "orders", "'"):
        assert (found(store, nothing), search(store, nothing).only) == ({}, None)
    for bad in ("", "  ", "a\0b", "x" * 1001):
        with pytest.raises(InvalidFilter):
            search(store, bad)


def test_of_many_the_latest_are_shown_and_say_why(store: Store, rows: Rows) -> None:
    for id in rows.insert(30, key="k"):
        rows.settle(id)
    [last] = rows.insert(key="k")
    answer = search(store, "k")
    ids = [str(message["id"]) for message in answer.messages]
    assert (len(ids), answer.more, answer.only) == (module.FOUND_AT_MOST, True, None)
    assert ids[0] == last
    rows.insert(module.FOUND_AT_MOST + 1, aggregate_type="celery.task", aggregate_id=TASK)
    assert search(store, TASK).more
    few, _ = (written(rows, sent=True, key="few") for _ in range(2))
    rows.insert(id=UUID(few), key="few", status="dead", dead_at=seconds_from_now(-5), last_error_code="http_422")
    first, second = search(store, "few").messages
    assert (str(first["id"]), first["state"], second["state"]) == (few, "dead", "sent")
    assert str(first["waits"]).startswith("It is dead since ")
    assert second["waits"] is None


class TestNothing:
    def test_says_what_can_be_checked(self, new_store: MakeStore, rows: Rows) -> None:
        store = new_store(archive_retention=86_400)
        id = uuid7()
        reasons = search(store, str(id)).reasons
        says = " ".join(reasons)
        assert "no transaction that has written here is open now" in says
        assert re.search(r"stays for 24 h, and the oldest messages here are of 2", says)
        assert f"schema '{store.settings.database_schema}'" in says
        assert search(store, "orders").reasons[0] == "It is a destination: outbox-tasks list --destination orders"
        rows.insert(event_type="order.lost")
        assert search(store, "order.lost").reasons[0] == "It is an event type: outbox-tasks list --type order.lost"

    def test_names_who_has_not_committed(self, store: Store, rows: Rows) -> None:
        id = str(uuid4())
        with psycopg.connect(store.settings.database_url, application_name="import.py") as writer:
            verb = sql.statement("write/publish.sql", store.settings.database_schema)
            row = {"id": id, "event_type": "a", "destination": "orders", "text": "{}", "content_type": "a/b"}
            psycopg.RawCursor(writer).execute(verb.text, verb.values({"row": json.dumps([row])}))
            # Others come and go all the time: a transaction is named when it has been open for a second.
            says = eventually(lambda: (first := search(store, id).reasons[0]).startswith("It is not") and first)
            pid = writer.info.backend_pid
            assert says.startswith("It is not committed yet. Transactions that wrote here and are open: session ")
            assert re.search(rf"session {pid} \(import\.py, \d+ s\)", says)
        assert found(store, id) == {id: ["id"]}

    def test_names_who_did_away_with_it(self, store: Store, rows: Rows, command: Command) -> None:
        [id] = rows.insert(status="dead", dead_at=seconds_from_now(-5))
        assert command("discard", id, "--yes", "--who", "anna").exit_code == 0
        rows.clear()  # as after archive_retention
        assert re.fullmatch(r"At 2.* UTC anna did this to it: discard.*", search(store, id).reasons[0])


def test_the_command_shows_one_lists_several_and_says_why_there_is_none(command: Command, rows: Rows) -> None:
    [one] = rows.insert(key="order:1", payload=b'{"total": 42}')
    rows.insert(2, key="order:2")
    assert f"Message {one}" in command("show", "order:1").stdout
    several = command("show", "order:2")
    assert (several.exit_code, several.stdout.count("its key: ")) == (0, 2)
    assert len(json.loads(command("show", "order:2", "--json").stdout)["messages"]) == 2
    assert command("show", "order:2", "--payload").exit_code == 2
    nothing = command("show", "order:3")
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    assert "No message fits 'order:3'. It may be that:\n- It was rolled back" in nothing.stderr
    assert json.loads(command("show", "order:3", "--json").stdout)["reasons"]
