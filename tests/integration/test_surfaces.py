"""Every surface says the same of the same trouble, in the same words."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from contextlib import closing
from uuid import uuid4

import httpx
import pytest
from prometheus_client import generate_latest
from sqlalchemy import update

from outbox_tasks.operating import pauses
from outbox_tasks.operating.problems import Connections, Problem, Severity, examine
from outbox_tasks.relay.store import Store
from outbox_tasks.telemetry.alerts import compared
from outbox_tasks.telemetry.metrics import database_registry
from outbox_tasks.web import Page, Person, Role
from tests.conftest import MakeSettings, Rows, seconds_from_now
from tests.exposed import samples
from tests.integration.conftest import Command
from tests.integration.doctoring import at_work, tally

Trouble = Callable[[Store, Rows], None]


def circuit_open(store: Store, rows: Rows) -> None:
    """Since ten minutes ago, and for ten minutes more."""
    for _ in range(store.settings.breaker_failures):
        store.traffic.tripped("orders", str(uuid4()), "connection", "refused")
    with rows.engine.begin() as connection:
        times = {"opened_at": seconds_from_now(-600), "pause_until": seconds_from_now(600)}
        connection.execute(update(rows.tables.destinations).values(**times))
    rows.insert(3, locked_until=seconds_from_now(-500))


def paused(store: Store, rows: Rows) -> None:
    rows.insert(2, locked_until=seconds_from_now(-900))
    pauses.pause(store, "orders", "jo", "moving house")


def refusing(store: Store, rows: Rows) -> None:
    rows.insert(9, status="dead", dead_at=seconds_from_now(-130), last_error_code="http_422")
    tally(store, dead=9)


def failing(store: Store, rows: Rows) -> None:
    tally(store, sent=20, retry=20)


def held_up(store: Store, rows: Rows) -> None:
    rows.insert(1, key="a", status="dead", dead_at=seconds_from_now(-60), last_error_code="http_400")
    rows.insert(2, key="a")


def unknown(store: Store, rows: Rows) -> None:
    rows.insert(2, destination="new", locked_until=seconds_from_now(-600))


@pytest.mark.parametrize(
    ("trouble", "code", "words"),
    [
        (circuit_open, "breaker_open", "has been open for 10 min"),
        (paused, "paused", "by jo: moving house"),
        (refusing, "destination_refuses", "orders refuses everything (http_422)"),
        (failing, "destination_failing", "50% of the sends to orders fail"),
        (held_up, "dead_letters", "1 dead letter waits for a person"),
        (unknown, "destination_unknown", "messages have been due for 10 min"),
    ],
)
def test_the_root_cause_stands_first_everywhere(
    store: Store, rows: Rows, command: Command, trouble: Trouble, code: str, words: str
) -> None:
    at_work(rows)
    trouble(store, rows)
    [root] = [problem for problem in examine(store.settings).problems if problem.code != "broker_unknown"]
    assert root.code == code
    assert words in root.fact
    for name in ("status", "health", "doctor"):
        lines = [line for line in command(name).stdout.splitlines() if line[:1] in "✗!i"]
        assert any(same(root, line) for line in lines), (name, lines)
    for name in ("status", "health", "doctor"):
        codes = [each["code"] for each in json.loads(command(name, "--json").stdout)["problems"]]
        assert code in codes, name
    with (
        closing(Page(store.settings, who=lambda host: Person("jo", Role.LOOK))) as page,
        httpx.Client(transport=httpx.WSGITransport(app=page.wsgi), base_url="http://page") as client,
    ):
        shown = [html.unescape(client.get(path).text) for path in ("/", f"/destinations/{root.which}")]
    assert all(same(root, text) for text in shown)
    told = compared(store, examine(store.settings))
    assert [row.code for row in told if same(root, row.fact)] == ([code] if root.severity != Severity.NOTE else [])
    with closing(Connections(store.settings)) as connections:
        exposed = samples(generate_latest(database_registry(connections)))["outbox_problem"]
    assert ({"code": code, "which": root.which, "severity": root.severity.value}, 1.0) in exposed


def same(problem: Problem, text: str) -> bool:
    """Whether the text has the fact. Its ages are those of another moment."""
    pattern = r"[0-9,.]+".join(map(re.escape, re.split(r"[0-9][0-9,.]*(?= (?:s|min|h|d)\b)", problem.fact)))
    return re.search(pattern, text) is not None


def test_what_follows_from_a_cause_stands_below_it(store: Store, rows: Rows, command: Command) -> None:
    """Nobody serves the queues: so nothing is claimed, beat's ticks don't show, and messages wait."""
    rows.insert(3, locked_until=seconds_from_now(-900))
    told = command("health").stdout.splitlines()
    assert told[0].startswith("✗ No worker serves outbox.claim, outbox.publish, outbox.drain, outbox.maintain: ")
    assert [line[:4] for line in told[1:]].count("  so") == len([line for line in told[1:] if line[:1] != "i"])
    assert any("the oldest message has been due for 15 min" in line for line in told)


def test_of_many_destinations_with_one_problem_each_page_says_its_own(
    store: Store, rows: Rows, settings: MakeSettings
) -> None:
    names = [f"d{number:02}" for number in range(15)]
    for name in names:
        pauses.pause(store, name, "jo", "moving house")
    many = settings(destinations={name: {"url": "a://b"} for name in names}, broker_url=None)
    listed = {problem.which for problem in examine(many).problems if problem.code == "paused"}
    [unlisted, *_] = sorted({*names} - listed)
    with (
        closing(Page(many, who=lambda host: Person("jo", Role.LOOK))) as page,
        httpx.Client(transport=httpx.WSGITransport(app=page.wsgi), base_url="http://page") as client,
    ):
        assert f"{unlisted} has been paused for" in html.unescape(client.get(f"/destinations/{unlisted}").text)
