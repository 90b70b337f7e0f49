"""The commands for destinations in trouble, the status, and what all commands have in common."""

from __future__ import annotations

import json
import socket
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from click.testing import CliRunner

from outbox_tasks import Outbox
from outbox_tasks.cli import outbox
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.operating import limits
from outbox_tasks.relay.store import Store
from tests.claims import take_batch
from tests.conftest import Rows, seconds_from_now
from tests.integration.conftest import Command
from tests.integration.doctoring import at_work, beats, tally

EMPTY = dict.fromkeys(("outbox.claim", "outbox.publish", "outbox.drain", "outbox.maintain"), 0)
"""Nothing is queued."""


@pytest.fixture
def command_settings() -> dict[str, Any]:
    return {"destinations": {name: {"url": "a://b"} for name in ("orders", "mails", "[red]mails")}}


@pytest.fixture
def run(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`outbox-tasks` on a narrow terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    return command


@pytest.fixture
def broker(run: Command, broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTBOX_BROKER_URL", broker_url)


def test_a_destination_is_paused_and_resumed_or_its_circuit_is_closed(run: Command, store: Store, rows: Rows) -> None:
    rows.insert(3)
    paused = run("pause", "orders", "--why", "moving house", "--who", "ann")
    assert (paused.exit_code, paused.stdout) == (0, "orders is paused. Its messages wait.\n")
    assert not take_batch(store)
    assert run("resume", "orders").stdout == "orders goes on.\n"
    assert run("resume", "orders").stdout == "orders was neither paused nor in trouble.\n"
    assert len(take_batch(store).messages) == 3
    for _ in range(store.settings.breaker_failures):
        store.traffic.tripped("mails", str(uuid4()), "connection", "refused by the other side")
    assert json.loads(run("resume", "mails", "--json").stdout) == {"resumed": "mails", "changed": True}
    assert not store.traffic.states()
    *_, pause = json.loads(run("audit", "--json").stdout)["acts"]
    assert (pause["action"], pause["target"], pause["who"], pause["why"]) == ("pause", "orders", "ann", "moving house")
    assert "pause orders" in run("audit").stdout


def test_a_name_that_nobody_knows_is_bad_usage(run: Command) -> None:
    refused = run("pause", "oders")
    assert refused.exit_code == 2
    assert "'oders' is not configured; known: [red]mails, mails, orders" in refused.output


def test_options_that_do_not_go_together_are_bad_usage() -> None:
    for words in (
        "health --port 1", "health --serve --worker x", "doctor --alerts --test-alert", "status --prometheus --json",
        "init --adopt-broker --sql", "list --by key --state dead", "show x --payload --payload extra",
        *(f"limit orders {more}" for more in ("--clear --rate 2", "--clear --for 2h", "--for 2h", "--for 2x")),
        "list --type *a*a*a*a*a*a", "nothing", "edit 1",
    ):  # fmt: skip
        refused = CliRunner().invoke(outbox, words.split())
        assert refused.exit_code == 2, words
        assert "not configured" not in refused.output, words  # no destination is: the options are looked at before


def test_keys_are_listed_with_what_holds_them_and_how_many_more_there_are(run: Command, rows: Rows) -> None:
    assert run("list", "--by", "key").stdout == "No key is held up.\n"
    ids = []
    for n, key in enumerate(("order:1", "a-key-as-long-as-keys-are/" * 8, "order:3")):
        ids += rows.insert(1, key=key, status="dead", dead_at=seconds_from_now(n - 60), last_error_code="no" * 20)
        rows.insert(n + 1, key=key)
    rows.insert(1, key="nobody waits", status="dead", dead_at=seconds_from_now(-90))
    whole = run("list", "--by", "key")
    assert (whole.exit_code, [id for id in ids if id in whole.stdout]) == (0, ids)  # no id is cut
    assert "orders  order:1  1 waits" in whole.stdout
    assert "nobody waits" not in whole.stdout
    assert "more" not in whole.output
    some = run("list", "--by", "key", "--limit", "2")
    assert ids[2] not in some.stdout
    assert "There are more: --limit shows them." in some.stderr
    assert json.loads(run("list", "--by", "key", "--limit", "2", "--json").stdout)["more"]
    assert json.loads(run("list", "--by", "key", "--destination", "mails", "--json").stdout)["keys"] == []


def test_what_became_of_a_redrive(run: Command, rows: Rows) -> None:
    one, _ = rows.insert(2, status="dead", dead_at=seconds_from_now(-1), attempts=1)
    assert "What becomes of them: outbox-tasks audit --became 1" in run("redrive", "--all", "--yes").stdout
    assert (found := run("audit", "--became", "1")).stdout == "2 waiting.\n"
    assert found.exit_code == 0
    rows.change([one], status="dead", dead_at=seconds_from_now(0), last_error_code="http_422")
    assert (found := run("audit", "--became", "1")).stdout == "1 waiting, 1 dead again (http_422).\n"
    assert found.exit_code == 1
    assert json.loads(run("audit", "--became", "1", "--json").stdout)["known"] == 2
    assert "No. 2 of the audit is no redrive" in run("audit", "--became", "2").stderr
    rows.clear()
    assert run("audit", "--became", "1").stdout == "2 no longer here.\n"


def test_an_error_is_an_object_too_where_a_program_reads(run: Command, rows: Rows) -> None:
    refused = run("audit", "--payload", "1", "--json")
    assert refused.exit_code == 1
    assert json.loads(refused.stdout) == {"error": "No. 1 of the audit is no edit."}
    assert refused.stderr == "Error: No. 1 of the audit is no edit.\n"


def test_through_an_app_a_command_has_its_settings_and_its_broker(
    store: Store, broker_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)  # without outbox.toml, and no variable names a database
    with Celery("shop", broker=broker_url, set_as_current=False) as app:
        Outbox(store.settings.replace(broker_url=None)).install(app)
        for words, code in (("list", 0), ("drain", 0), ("health", 1), ("status --json", 0)):
            done = CliRunner().invoke(
                outbox, words.split(), obj=SimpleNamespace(app=app), prog_name="celery -A shop outbox"
            )
            assert "database_url" not in done.output
            assert done.exit_code == code, done.output
        assert json.loads(done.stdout)["queues"] == EMPTY


def test_every_command_is_in_the_help_in_one_line() -> None:
    lines = CliRunner().invoke(outbox, ["--help"], env={"COLUMNS": "80"}).stdout.splitlines()
    assert len(lines) > 30
    assert not [line for line in lines[1:] if line.endswith("...")]


def shown(run: Command) -> Any:
    result = run("status", "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.usefixtures("broker")
def test_what_is_wrong_comes_first_and_nothing_is_wider_than_the_terminal(
    run: Command, store: Store, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox_tasks.operating.overview.PAGES_SAMPLED", 20)
    rows.insert(12_000)  # more than are counted, on more pages than are read
    rows.insert(3, destination="[red]mails", locked_until=seconds_from_now(-7200))
    rows.insert(1, key="a", status="dead", dead_at=seconds_from_now(-60))
    rows.insert(2, key="a")
    at_work(rows)
    beats(rows, "worker", 600, "feeds@here", queues=["outbox.feed"])
    limits.pause(store, "orders", "alice", "moving house")
    tally(store, sent=60, later=2)
    lines = run("status").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    signs = [line for line in lines if line[:2] in ("✗ ", "! ", "i ")]
    assert signs[0] == "✗ [red]mails: the oldest message has been due for 2 h."
    assert [sign[0] for sign in signs] == ["✗", "!", "i"]
    assert "    so: orders: dead messages hold up 1 key." in lines
    assert "    → outbox-tasks resume orders" in lines
    [place] = [place for place, line in enumerate(lines) if line.startswith("orders   ")]
    orders = lines[place].split()
    assert (orders[1][0], orders[5], " 60 2 " in " ".join(orders)) == ("~", "1", True)
    assert lines[place + 1].strip() == "paused"
    assert any("lost, 10 min ago" in line for line in lines)
    assert "handed" not in " ".join(lines)  # only where there are supervised tasks


@pytest.mark.usefixtures("broker")
def test_programs_get_all_of_it_and_supervised_tasks_have_columns_of_their_own(run: Command, rows: Rows) -> None:
    rows.insert(3)
    rows.insert(2, locked_until=seconds_from_now(60))
    handed = {"lease": uuid4(), "handed_at": seconds_from_now(-5), "locked_until": seconds_from_now(60), "attempts": 1}
    rows.insert(3, **handed)
    [id] = rows.insert(1, **handed, begun=True, locked_by="shop@host:1:x")
    beats(rows, "worker", 1, "publish@here", queues=["outbox.publish", "outbox.drain"])
    beats(rows, "tasks", 1, "shop@host (tasks)", queues=["shop"])
    beats(rows, "beat", 2)
    found = shown(run)
    [orders] = [one for one in found["destinations"] if one["name"] == "orders"]
    assert orders["state"] == "closed"
    assert {state: count for state, count in orders["states"].items() if count} == {
        "pending": 3, "scheduled": 2, "handed over": 3, "running": 1,
    }  # fmt: skip
    assert (orders["due"], orders["estimated"]) == (3, [])
    assert [(one["name"], one["queues"]) for one in found["workers"]] == [
        ("publish@here", ["outbox.publish", "outbox.drain"]), ("shop@host (tasks)", ["shop"]),
    ]  # fmt: skip
    assert (found["claim"], found["queues"]) == (None, EMPTY)
    assert found["archived"] == {"count": 0, "estimated": False}
    assert found["problems"][0]["code"] == "no_workers"
    lines = run("status").stdout.splitlines()
    [titles] = [line.split() for line in lines if "handed" in line]
    [cells] = [line.split() for line in lines if line.startswith("orders ")]
    place = titles.index("runs")
    assert cells[place - 1 : place + 1] == ["3", "1"]
    assert any(line.startswith("shop@host (tasks) shop ") for line in lines)
    of_one = " ".join(run("show", id).stdout.split())
    assert all(words in of_one for words in ("state running", "held by shop@host:1:x", "handed at"))


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_without_a_broker_or_a_database_the_rest_is_shown(
    run: Command, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.insert(3)
    with socket.create_server((LOOPBACK, 0)) as silent:
        monkeypatch.setenv("OUTBOX_BROKER_URL", f"redis://{LOOPBACK}:{silent.getsockname()[1]}/0")
        found = shown(run)
    [orders] = [one for one in found["destinations"] if one["name"] == "orders"]
    assert (found["queues"], found["queues_unknown"]) == (None, "not known: the broker gave no answer")
    assert orders["due"] == 3
    monkeypatch.setenv("OUTBOX_BROKER_URL", "")  # where the relay is installed in an application, it is that one's
    assert "queued: not asked: OUTBOX_BROKER_URL is not set" in run("status").stdout
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "postgresql://127.0.0.1:1/outbox")
    assert shown(run)["problems"][0]["code"] == "database_away"
    assert run("status").stdout.startswith("✗ The database postgresql://127.0.0.1:1/outbox ")
