"""The commands that find and mend messages, as people and programs use them."""

from __future__ import annotations

import base64
import getpass
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from click.testing import Result
from sqlalchemy import text

from outbox_tasks.cli.shared.acts import stoppable
from outbox_tasks.cli.show import shown_payload
from outbox_tasks.model import sibling
from outbox_tasks.operating.messages import find, paging
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.messages.find import Filter
from outbox_tasks.operating.messages.payload import laid_out, mended
from outbox_tasks.relay.store import Store
from tests.conftest import Rows, eventually, seconds_from_now
from tests.integration.acting import acts, bury
from tests.integration.conftest import Command


@pytest.fixture
def command_settings() -> dict[str, Any]:
    return {"destinations": {"orders": {"url": "a://b"}, "mails": {"url": "a://b"}}}


@pytest.fixture
def run(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`outbox-tasks` on a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    return command


def told(result: Result) -> Any:
    """The one JSON object."""
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return json.loads(result.stdout)


@contextmanager
def meanwhile(rows: Rows, what: Callable[[], object]) -> Iterator[None]:
    """Do it as soon as a message is redriven."""

    def do() -> None:
        eventually(lambda: [row for row in rows.hot() if row.status == "pending"])
        what()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(do)
        yield
        done.result()


class TestList:
    def test_fits_the_terminal_with_the_whole_id(self, run: Command, rows: Rows) -> None:
        long = {"event_type": "order." + "x" * 200, "key": "k" * 200, "last_error": "no such\norder " * 90}
        [id] = bury(rows, **long)
        lines = run("list").stdout.splitlines()
        assert max(map(len, lines)) <= 80
        assert any(id in line and "dead" in line for line in lines)
        assert "http_400: no" in " ".join(lines)

    def test_any_time_that_somebody_wrote_can_be_shown(self, run: Command, rows: Rows) -> None:
        ids = {*rows.insert(1), *rows.insert(1, key="k"), *rows.insert(1, status="dead", dead_at=seconds_from_now(-1))}
        times = ("infinity", "-infinity", "12345-06-07", "0044-03-15 BC", "9999-12-31 23:59:59+00")
        for time in times:
            [id] = rows.insert(1)
            for column in ("created_at", "locked_until", "dead_at"):
                rows.change([id], **{column: text(f"'{time}'::timestamptz")})
            ids.add(id)
            assert id in run("show", id).stdout, time
            assert told(run("show", id, "--json"))["id"] == id
        assert {one["id"] for one in told(run("list", "--json"))["messages"]} == ids
        for words in ("list", "list --by error", "list --by key", "status", "health"):
            assert not isinstance(run(*words.split()).exception, Exception)

    def test_says_that_there_are_more(self, run: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        [id] = bury(rows, key="k")
        rows.insert(2)
        shown = told(run("list", "--state", "dead", "--json"))
        [one] = shown["messages"]
        assert (one["id"], one["key"], one["last_error_code"], shown["complete"]) == (id, "k", "http_400", True)
        assert len(told(run("list", "--state", "dead", "--state", "pending", "--json"))["messages"]) == 3
        assert "These are 2; --limit shows more" in run("list", "--limit", "2").stderr
        assert not told(run("list", "--limit", "2", "--json"))["complete"]
        assert run("list", "--limit", "4").stderr == ""
        assert run("list", "--type", "nothing").output == "No such messages.\n"
        assert "No destination 'oders' is configured." in run("list", "--destination", "oders").stderr
        monkeypatch.setattr(paging, "ROWS_LOOKED_AT", 1)
        monkeypatch.setattr(paging, "ROWS_A_LOOK", 1)
        assert "Looked at 2 messages back to those of " in run("list", "--type", "nothing", "--limit", "1").stderr


class TestShow:
    def test_everything(self, run: Command, rows: Rows) -> None:
        [id] = bury(rows, key="k", payload=b'{"id": 42, "total": 1.10}', headers={"tenant": "t1"})
        run("redrive", id, "--yes", "--who", "ann", "--why", "the shop is back")
        shown = run("show", id).stdout
        for part in (id, "pending", "order.created", "orders", "tenant: t1", "redriven by ann: the shop is back"):
            assert part in shown
        event = uuid4()
        rows.insert(1, id=event)
        note = {"at": "2026-11-01T12:00:00+00:00", "what": "failed", "traceback": "ValueError: no"}
        more = {"priority": -1, "history": [note] * 30, "event_type": "mail.sent"}
        [other] = bury(rows, id=sibling(event, "mails"), destination="mails", headers={"eventid": str(event)}, **more)
        shown = run("show", other).stdout
        for part in (f"orders: {event} (pending)", "low", "\nValueError: no\n", "last 29 are kept"):
            assert part in shown
        shown = run("show", id).stdout
        assert '{"id": 42, "total": 1.10}' in shown
        one = told(run("show", id, "--json"))
        assert (one["payload"], one["audit"][0]["who"]) == ('{"id": 42, "total": 1.10}', "ann")
        assert [run("show", known).exit_code for known in (id, "k", str(uuid4()), "nothing")] == [0, 0, 1, 1]

    def test_a_payload_for_a_pipe(self, run: Command, rows: Rows) -> None:
        [id] = rows.insert(payload=b"\x00\xff\n")
        assert run("show", id, "--payload").stdout_bytes == b"\x00\xff\n"
        assert base64.b64decode(told(run("show", id, "--json"))["payload_base64"]) == b"\x00\xff\n"
        assert "It is not text" in run("show", id).stdout

    def test_laying_out_changes_nothing_but_spaces(self) -> None:
        assert laid_out(b'{ "a":1,"b":[]}') == '{\n  "a": 1,\n  "b": []\n}'
        for changed in (b'{"a":1.10}', b'{"a":1,"a":2}', b"{", b'"\\ud800"'):
            assert laid_out(changed) == changed.decode()
        assert laid_out(b"\xff") is laid_out(b"\0") is None
        edited: list[tuple[bytes, bytes]] = [
            (b'{"a":1,"b":[1,2]}', b'{"a":7,"b":[1,2]}'),
            (b'{"a": 1, "b": "\xc3\xbc"}', b'{"a":7,"b":"\xc3\xbc"}'),
            (b'{"a":1,  "n":1.10}', b'{"a":7,  "n":1.10}'),
            (b'{"a":1,"a":2}\n', b'{"a":7,"a":2}\n'),
            (b"\n 1 line\r\n", b"\n 7 line\r\n"),
        ]
        for former, changed in edited:
            assert mended(former, str(laid_out(former))) == former
            assert mended(former, str(laid_out(former)).replace("1", "7", 1)) == changed
        for written in ('{"a": 1.10, "b": 123456789012345678901234567890.5}', "{"):
            assert mended(b'{"a":1}', written) == written.encode()
        deep = b"[" * 900 + b"]" * 900
        assert laid_out(b"[" + b",".join([deep] * 100) + b"]") == f"[{','.join([deep.decode()] * 100)}]"
        assert shown_payload(b"x" * 70_000).endswith("… and 4,464 characters more: --payload prints all of it")


class TestErrors:
    def test_in_groups_with_what_to_do(self, run: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        assert run("list", "--by", "error").stdout == "There are no dead letters.\n"
        ids = bury(rows, 3)
        bury(rows, destination="mails")
        shown = run("list", "--by", "error")
        assert max(map(len, shown.stdout.splitlines())) <= 80
        assert ("refused: no such order 42" in shown.stdout, "--group GROUP" in shown.stderr) == (True, True)
        first, second = told(run("list", "--by", "error", "--json"))["groups"]
        assert (first["count"], first["id"] in ids, second["destination"]) == (3, True, "mails")
        assert first["redrive"] == f"outbox-tasks redrive --group {first['group']}"
        [group] = told(run("list", "--by", "error", "--destination", "mails", "--json"))["groups"]
        assert group["count"] == 1
        assert "These are the largest 1 of 2 groups" in run("list", "--by", "error", "--limit", "1").stderr
        assert not told(run("list", "--by", "error", "--limit", "1", "--json"))["complete"]
        monkeypatch.setattr(find, "GROUPS_AT_MOST", 1)
        assert "Only the first" in run("list", "--by", "error").stderr


class TestActs:
    def test_show_and_ask_before_they_act(self, run: Command, rows: Rows) -> None:
        id, *_ = bury(rows, 3)
        shown = run("redrive", "--all", "--dry-run").stdout
        assert "http_400" in shown
        assert run("redrive", "--all", "--dry-run", "--yes").exit_code == 0
        declined = run("redrive", "--all", typed="n\n")
        assert (declined.exit_code, "Redrive 3 messages?" in declined.stdout) == (1, True)
        assert "Redrive the first 2 of 3 messages?" in run("redrive", "--all", "--limit", "2", typed="n\n").stdout
        assert acts(rows) == []
        agreed = run("redrive", "--all", typed="y\n")
        assert (agreed.exit_code, "3 messages redriven.\n" in agreed.stdout) == (0, True)
        [act] = acts(rows)
        assert (act.who, act.count, len(act.facts["changed"])) == (getpass.getuser(), 3, 3)
        assert told(run("show", id, "--json"))["audit"][0]["seq"] == act.seq
        assert run("redrive", "--all", "--yes").stdout == "There is nothing to redrive.\n"
        with stoppable() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.wait(9)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT), stop.clear(), stop.wait(9)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "Ctrl-C does again what it did before"

    def test_refuse_to_act_without_a_filter(self, run: Command) -> None:
        for command in ("redrive", "discard"):
            assert run(command, "--yes").exit_code == run(command, "--yes", "--limit", "5").exit_code == 2
            assert run(command, str(uuid4()), "--all").exit_code == 2
            assert run(command, "--all", "--json").exit_code == 2

    def test_report_messages_that_are_not_dead(self, run: Command, rows: Rows) -> None:
        [dead], [pending], nobody = bury(rows), rows.insert(), str(uuid4())
        done = run("redrive", dead, pending, nobody, "--yes")
        assert done.exit_code == 1
        assert "1 message redriven." in done.stdout
        assert f"{pending} was not: it is pending." in done.stderr
        assert f"{nobody} was not: there is no such message." in done.stderr
        again = told(run("redrive", dead, "--yes", "--json"))
        assert (again["redriven"], again["missed"]) == (0, [{"id": dead, "state": "pending"}])
        bury(rows)
        schema = rows.tables.messages.schema
        with rows.engine.connect() as other, other.begin():
            other.execute(text(f"SELECT FROM {schema}.outbox_dead FOR UPDATE"))
            assert "1 message not: they were on their way" in run("redrive", "--all", "--yes").stderr
        with rows.engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE {schema}.outbox_ready ADD CHECK (false) NOT VALID"))
        failed = run("redrive", "--all", "--yes")
        assert (failed.exit_code, "Then it failed: CheckViolation" in failed.stderr) == (1, True)

    def test_discard_only_dead_letters_by_default_and_delete_for_good(self, run: Command, rows: Rows) -> None:
        bury(rows), rows.insert(locked_until=seconds_from_now(60))
        [deleted], [waits] = bury(rows, destination="mails"), rows.insert()
        assert told(run("discard", "--delete", "--destination", "mails", "--yes", "--json"))["deleted"] == 1
        assert told(run("discard", "--all", "--yes", "--json"))["discarded"] == 1
        assert told(run("discard", "--state", "scheduled", "--all", "--yes", "--json"))["discarded"] == 1
        assert told(run("discard", waits, "--yes", "--json"))["discarded"] == 1
        assert (rows.hot(), len(rows.archived()), run("show", deleted).exit_code) == ([], 3, 1)
        assert [act.action for act in acts(rows)] == ["purge", "discard", "discard", "discard"]

    def test_ctrl_c_stops_after_a_batch_and_says_how_many(self, run: Command, rows: Rows) -> None:
        bury(rows, 500)
        with meanwhile(rows, lambda: os.kill(os.getpid(), signal.SIGINT)):
            done = run("redrive", "--all", "--yes", "--rate", "50")
        redriven = sum(row.status == "pending" for row in rows.hot())
        assert 0 < redriven < 500
        assert f"{redriven} message" in done.stdout
        assert "then it was stopped" in done.stdout
        assert (done.exit_code, acts(rows)[0].count) == (1, redriven)

    def test_without_its_database_says_that_others_may_go_on(self, run: Command, rows: Rows) -> None:
        def away() -> None:
            with rows.engine.begin() as connection:
                connection.execute(text(f"ALTER TABLE {rows.tables.audit} RENAME TO elsewhere"))

        bury(rows, 500)
        with meanwhile(rows, away):
            done = run("redrive", "--all", "--yes", "--rate", "50")
        assert done.exit_code == 1
        assert "Another process may go on with act 1. To end it: outbox-tasks audit --stop 1" in done.stderr

    def test_of_others_are_in_the_status_and_may_go_on(self, run: Command, store: Store, rows: Rows) -> None:
        bury(rows, 3)
        bury(rows, destination="mails")
        wanted = Filter(states=("dead",), destination="orders")
        how: dict[str, Any] = {"who": "anna", "why": None, "token": uuid4(), "total": 3, "wake": False}
        entry = Runner(store).begin("redrive", wanted, **how)
        said = "anna is redriving 3 messages of orders since "
        assert said in run("status").stdout
        assert told(run("status", "--json"))["acts"][0]["seq"] == entry
        assert told(run("redrive", "--all", "--limit", "2", "--yes", "--json"))["redriven"] == 2
        assert told(run("redrive", "--all", "--yes", "--json"))["redriven"] == 2, "it may go on"
        assert told(run("audit", "--stop", str(entry), "--who", "bob", "--json")) == {"stopped": True}
        again = run("audit", "--stop", str(entry))
        assert (again.exit_code, again.stdout) == (1, f"No. {entry} is not under way.\n")
        assert "stopped by bob" in run("audit").stdout

    def test_say_what_stands_in_the_way(self, run: Command, store: Store, rows: Rows) -> None:
        bury(rows, destination="gone")
        assert "'gone' is not configured" in run("redrive", "--all", "--dry-run").stderr
        [dead] = bury(rows)
        opened = "opened_at, pause_until) VALUES ('orders', now(), now() + interval '1 hour')"
        for row, remark in (
            (opened, "the circuit of orders is open"),
            ("paused_at, paused_by) VALUES ('orders', now(), 'bob')", "orders is paused by bob"),
        ):
            with rows.engine.begin() as connection:
                connection.execute(text(f"DELETE FROM {rows.tables.destinations}"))
                connection.execute(text(f"INSERT INTO {rows.tables.destinations} (name, {row}"))
            for asked in (["redrive", "--all"], ["redrive", dead]):
                shown = run(*asked, "--dry-run").stderr
                assert f"These messages would wait: {remark}" in shown
            assert remark not in run("discard", "--all", "--dry-run").stderr
        assert run("try", "--destination", "orders", "--yes").stdout == "There is nothing to try.\n", "it is paused"

    def test_try_makes_due_what_waits_and_ends_the_pause_of_its_destination(self, run: Command, rows: Rows) -> None:
        waits = {"attempts": 2, "last_error_code": "http_429", "locked_until": seconds_from_now(900)}
        [id], [scheduled] = rows.insert(**waits), rows.insert(locked_until=seconds_from_now(900))
        opened = "(name, opened_at, pause_until) VALUES ('orders', now(), now() + interval '900 seconds')"
        with rows.engine.begin() as connection:
            connection.execute(text(f"INSERT INTO {rows.tables.destinations} {opened}"))
        done = run("try", "--destination", "orders", "--why", "it is mended", typed="y\n")
        assert (done.exit_code, "1 message made due.\n" in done.stdout) == (0, True)
        assert "One message would try it at once." in done.stderr
        assert (rows.one(id).place, rows.one(id).attempts) == ("ready", 2)
        with rows.engine.connect() as connection:
            due = f"SELECT pause_until <= now() AND opened_at IS NOT NULL FROM {rows.tables.destinations}"
            assert connection.scalar(text(due))
        missed = run("try", scheduled, "--yes")
        assert (missed.exit_code, f"{scheduled} was not: it is scheduled." in missed.stderr) == (1, True)


class TestEdit:
    def test_from_a_file(self, run: Command, rows: Rows) -> None:
        [id] = bury(rows, payload=b'{"id":42}')
        done = run("edit", id, "--payload", "-", "--why", "a typo", "--yes", typed='{"id":43}')
        assert done.exit_code == 0
        assert '-  "id": 42' in done.stdout
        assert '+  "id": 43' in done.stdout
        assert (rows.one(id).payload, rows.one(id).status) == (b'{"id":43}', "dead")
        [act] = acts(rows)
        sent = run("edit", id, "--payload", "-", "--content-type", "text/x", "--redrive", "--yes", "--json", typed="\0")
        assert (told(sent)["redriven"], rows.one(id).content_type) == (1, "text/x")
        assert run("audit", "--payload", str(act.seq)).stdout_bytes == b'{"id":42}'
        assert run("audit", "--payload", "999").exit_code == 1

    def test_in_an_editor_and_sent_at_once(self, run: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("VISUAL", "sed -i s/42/43/")
        [id] = bury(rows, payload='{"id": 42, "name": "Zoë"}'.encode())
        done = run("edit", id, "--redrive", typed="y\n")
        assert (done.exit_code, "send it?" in done.stdout, "1 message redriven." in done.stdout) == (0, True, True)
        assert (rows.one(id).payload.decode(), rows.one(id).status) == ('{"id":43,"name":"Zoë"}', "pending")
        assert [act.action for act in acts(rows)] == ["edit", "redrive"]
        assert [note["what"] for note in rows.one(id).history] == ["edited", "redriven"]
        [text] = bury(rows, payload=b"42 apples", content_type="text/plain")
        monkeypatch.setenv(
            "VISUAL", "sed -i -e s/42/43/ -e '$a\\'"
        )  # as most editors, it ends the text with a new line
        [lines] = bury(rows, payload=b"42 pears\n", content_type="text/plain")
        assert run("edit", text, "--yes").exit_code == run("edit", lines, "--yes").exit_code == 0
        assert (rows.one(text).payload, rows.one(lines).payload) == (b"43 apples", b"43 pears\n")

    def test_refuses_a_bad_payload_before_it_asks(
        self, run: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        [id] = bury(rows)
        assert "it is not application/json" in run("edit", id, "--payload", "-", typed="{").stderr
        assert "Nothing was changed." in run("edit", id, "--payload", "-", typed="{}").stderr
        monkeypatch.setenv("VISUAL", "true")
        assert "Nothing was changed." in run("edit", id).stderr
        [binary] = bury(rows, payload=b"\xff")
        assert "the payload is not text" in run("edit", binary).stderr
        shown = run("edit", binary, "--payload", "-", "--content-type", "text/x", "--dry-run", typed="{}").stdout
        assert all(line in shown for line in ("-application/json", "+text/x", "-1 bytes", "+{}"))
        assert (rows.one(id).payload, acts(rows)) == (b"{}", [])
