"""The pages over the whole outbox, asked without a server, over the real tables."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from contextlib import closing
from html import unescape
from typing import Any
from uuid import UUID

import pytest
import uvicorn
from celery import Celery
from sqlalchemy import func

from outbox_tasks import Outbox
from outbox_tasks.operating import limits
from outbox_tasks.operating.messages.find import Lookup
from outbox_tasks.relay.store import Store
from outbox_tasks.web import Page
from tests.conftest import MakeSettings, Rows, seconds_from_now
from tests.integration.browsing import Browser, Visit, visitor, words
from tests.integration.conftest import Command
from tests.integration.doctoring import beats, tally

EVIL = "<script>alert(1)</script> & \u202e 100%/a?b#c 'q\" \x07"
"""A name as somebody might choose it to harm the page."""
DESTINATIONS = {name: {"url": "redis+stream://localhost/1/x"} for name in ("orders", "mails", EVIL)}


@pytest.fixture
def page_settings() -> dict[str, Any]:
    return {"broker_url": None, "destinations": DESTINATIONS}


def dead(rows: Rows, count: int = 1, **columns: Any) -> list[str]:
    usual = {"last_error_code": "http_400", "last_error": "refused", "attempts": 3}
    return rows.insert(count, status="dead", dead_at=seconds_from_now(-60), **{**usual, **columns})


class TestStart:
    def test_problems_come_first_with_what_to_do_what_follows_and_where_one_acts(
        self, visit: Visit, store: Store, rows: Rows
    ) -> None:
        dead(rows, key="k")
        rows.insert(4, key="k")
        rows.insert(3, destination="mails", locked_until=seconds_from_now(-7200))
        limits.pause(store, "mails", "bob <i>", "moving </main> house")
        beats(rows, "worker", 600, "publish@lost", queues=["outbox.publish"])
        html = visit().read("/")
        problems = [words(article) for article in re.findall("<article.*?</article>", html, re.DOTALL)]
        no_worker, lost, dead_letter, *_ = problems
        assert "✗ No worker serves outbox.claim, outbox.drain, outbox.maintain: none was ever seen." in no_worker
        assert "follow from it Beat has never ticked here. A claim has never run to its end here." in no_worker
        assert "✗ No worker serves outbox.publish: publish@lost was last seen 10 min ago." in lost
        assert "Copy Then outbox-tasks redrive, edit or discard." in dead_letter  # that is for people
        for where in ("/doctor", "/errors?destination=orders", "/destinations/mails"):
            assert f'</span> <a href="{where}">' in html
        assert ("<title>(3) Outbox" in html, 'data-label="running"' in html) == (True, False)
        assert html.index("dead letter") < html.index("<h2>Destinations")
        first = re.findall(r'<th scope="row" data-label="destination"><a href="([^"]*)"', html)
        assert first[:2] == ["/destinations/mails", "/destinations/orders"]

    def test_of_many_destinations_the_worst_are_shown_and_the_others_found(self, visit: Visit, rows: Rows) -> None:
        many = {f"tenant-{n:03}": {"url": "redis+stream://localhost/1/x"} for n in range(150)}
        rows.insert(5, destination="tenant-149")
        browser = visit(destinations=many)
        html = browser.read("/")
        shown = re.findall(r'data-label="destination"><a href="/destinations/([^"]*)"', html)
        assert (shown[:2], len(shown)) == (["tenant-149", "tenant-000"], 50)
        assert "There are 100 more" in html
        assert len(html) < 150_000
        found = browser.read("/", find="ANT-12")
        assert len(re.findall('data-label="destination"><a', found)) == 10
        assert "No destination has this in its name." in browser.read("/", find="nowhere")
        assert [visit(destinations={}).get(path).status_code for path in ("/", "/workers")] == [200, 200]


class TestDestination:
    def test_its_state_and_what_is_sent(self, visit: Visit, store: Store, rows: Rows) -> None:
        own = {"url": "https://bob:geheim123@hooks.example.com/secretpath?token=geheim456", "concurrency": 3}
        rows.insert(2, locked_until=seconds_from_now(600))
        sends = {"lease": UUID(int=7), "begun": True, "attempts": 1, "locked_by": "host/ab:7"}
        rows.insert(1, **sends, locked_until=seconds_from_now(90))
        tally(store, sent=1000, retry=30)
        with rows.engine.begin() as connection:
            t, ago = rows.tables.tallies, seconds_from_now(-2 * 3600)
            connection.execute(t.insert().values(minute=ago, destination="orders", outcome="sent", count=200))
        browser = visit(destinations={"orders": own})
        html, text = browser.read("/destinations/orders"), browser.text("/destinations/orders")
        for secret in ("geheim", "secretpath"):
            assert secret not in html
        assert "Sends at once 1 of 3" in text
        assert re.search(r"host/ab:7 orders \d+ s", text)
        assert 'href="/messages?destination=orders&amp;state=scheduled">2</a>' in html
        assert "<title>orders: 1,200 sent and 30 failed in the last 24 hours</title>" in html
        assert "<title>orders: 1,000 sent and 30 failed in the last hour</title>" in html
        html = browser.read("/")
        assert "<title>orders: 1,200 sent and 30 failed in the last 6 hours</title>" in html
        assert html.count('<path class="sent"') == html.count('<path class="failed"') == 1

    def test_pause_and_resume_take_a_reason_and_are_in_the_audit(self, visit: Visit, store: Store) -> None:
        browser = visit()
        for act, shown in (("pause", "Ⅱ paused"), ("resume", "✓ in service")):
            path = f"/destinations/{EVIL}/{act}"
            assert f"outbox-tasks {act} --why '…' $'<script>" in browser.text(f"/destinations/{EVIL}")
            for wrong in ({}, {"why": "x" * 501}):
                assert browser.post(path, **wrong).status_code == 400
            done = browser.post(path, why="they <b>move</b>")
            assert (done.status_code, done.headers["Location"][:26]) == (303, "/destinations/%3Cscript%3E")
            assert shown in browser.text(f"/destinations/{EVIL}")
        resumed, paused = Lookup(store).acts(5)
        assert (resumed["action"], paused["action"], paused["target"]) == ("resume", "pause", EVIL)
        assert (paused["who"], paused["why"]) == ("anna", "they <b>move</b>")

    def test_a_limit_takes_a_reason_and_an_end_and_says_whose_it_is(self, visit: Visit, store: Store) -> None:
        browser = visit()
        for wrong in ({"rate_limit": "0"}, {"rate_limit": "fast"}, {"rate_limit": "2", "for": "soon"}, {}):
            assert browser.post("/destinations/orders/limit", why="x", **wrong).status_code == 400
        assert browser.post("/destinations/orders/limit", rate_limit="2").status_code == 400
        assert "Clear the limits" not in browser.text("/destinations/orders")
        given = {"rate_limit": "2", "singles": "all", "for": "2h"}
        assert browser.post("/destinations/orders/limit", why="black <b>friday", **given).status_code == 303
        text = browser.text("/destinations/orders")
        assert re.search(r"rate_limit 2 a second by anna until 2\S+ \S+ UTC: black <b>friday", text)
        assert browser.post("/destinations/orders/clear-limits", why="over").status_code == 303
        assert "rate_limit none the default" in browser.text("/destinations/orders")
        assert [act["action"] for act in Lookup(store).acts(5)] == ["clear limits", "limit"]

    def test_one_that_is_no_longer_configured_is_shown_and_one_that_never_was_is_not(
        self, visit: Visit, rows: Rows
    ) -> None:
        dead(rows, 2, destination="former")
        rows.insert(1, destination="a/b/../c")
        browser = visit()
        html = browser.read("/destinations/former")
        assert ("? unknown" in words(html), 'method="post"' in html) == (True, False)
        assert browser.post("/destinations/former/pause", why="x").status_code == 409
        assert "a/b/../c" in browser.text("/destinations/a/b/../c")
        assert browser.get("/destinations/nobody").status_code == 404


def test_a_key_that_is_held_up_names_the_message_in_front_and_what_can_be_done(visit: Visit, rows: Rows) -> None:
    [id] = dead(rows, key=EVIL)
    rows.insert(3, key=EVIL)
    dead(rows, key="m", destination="mails")
    rows.insert(1, key="m", destination="mails")
    browser = visit()
    html = browser.read("/keys")
    for place in (f"/acts/new?action=redrive&amp;id={id}", f"/acts/new?action=discard&amp;id={id}", f"/messages/{id}"):
        assert f'href="{place}"' in html
    assert ": http_400. → outbox-tasks redrive" in words(html)
    only = browser.text("/keys", destination="mails")
    assert (" m mails 1 " in only, id in only) == (True, False)
    assert browser.text("/keys", destination="nobody").count("No key is held up.") == 1


def test_of_workers_those_in_trouble_come_first(visit: Visit, rows: Rows) -> None:
    beats(rows, "worker", 1, "a@here")
    beats(rows, "worker", 600, "z@lost")
    beats(rows, "worker", 1, "m@twice", met=3)
    beats(rows, "worker", 1, "odd", pool=None, queues=None)
    held = {"lease": UUID(int=1), "handed_at": seconds_from_now(-5), "locked_until": seconds_from_now(60)}
    rows.insert(2, **held, begun=True, attempts=1)
    html, text = (browser := visit()).read("/workers"), browser.text("/workers")
    assert text.index("z@lost ✗ lost") < text.index("m@twice ! shares its name") < text.index("a@here ✓ alive")
    assert 'data-label="running"' in browser.read("/")
    assert 'href="/messages?destination=orders&amp;state=running">2 of orders</a>' in html


def test_the_audit_comes_page_by_page_with_links(visit: Visit, store: Store, rows: Rows) -> None:
    for n in range(60):
        limits.pause(store, "orders", f"p{n} <b>", f"why {n} </td>")
    browser = visit()
    first = browser.read("/audit")
    assert "p59 <b> pause orders why 59 </td>" in words(first)
    assert first.count('href="/destinations/orders"') == 50
    [before] = re.findall(r'href="/audit\?before=(\d+)"', first)
    second = words(browser.read("/audit", before=before))
    assert ("p10 <b>" in second, "p9 <b>" in second) == (False, True)
    for rubbish in ("x", "-1", "9" * 30, "1 OR 1"):
        assert browser.get("/audit", before=rubbish).status_code == 400


def test_what_the_doctor_finds_and_its_alerts_are_shown(visit: Visit, rows: Rows) -> None:
    with rows.engine.begin() as connection:
        words = dict.fromkeys(("which", "fact", "cause", "remedy"), EVIL) | {"code": "stale", "severity": "error"}
        times = dict.fromkeys(("since", "seen_at", "told_at"), func.now())
        connection.execute(rows.tables.alerts.insert().values(**words, **times, is_unposted=False))
    browser = visit()
    html, text = browser.read("/doctor"), browser.text("/doctor")
    assert "✗ No worker serves" in text
    assert "✗ open" in text
    assert "<script>alert" not in html
    assert "data-again" not in html


@pytest.mark.parametrize(
    ("values", "said", "fact"),
    [
        ({}, "outbox-tasks init", "outbox-tasks init"),
        ({"database_url": "postgresql://x@127.0.0.1:1/x"}, "can't serve the outbox", "✗ The database"),
    ],
    ids=["tables", "database"],
)
def test_without_tables_or_a_database_the_page_says_so(
    settings: MakeSettings, values: dict[str, Any], said: str, fact: str
) -> None:
    with closing(Page(settings(broker_url=None, **values), who=visitor)) as page:
        browser = Browser(page)
        for path in ("/destinations/orders", "/keys", "/workers", "/audit"):
            answer = browser.get(path)
            assert answer.status_code == 503, path
            assert said in unescape(answer.text)
        start = browser.get("/")
        assert (start.status_code, fact in words(start.text), "<h2>" in start.text) == (503, True, False)
        assert 'data-again="/"' in start.text  # it recovers by itself
        assert fact in browser.text("/doctor")


def test_of_an_installed_relay_the_application_s_broker_is_asked(
    settings: MakeSettings, store: Store, broker_url: str
) -> None:
    app = Celery("shop", broker=broker_url, set_as_current=False)
    shop = Outbox(settings(broker_url=None))
    page = Page(shop, who=visitor)
    try:
        assert "not asked" in Browser(page).text("/")
        shop.install(app)
        page.close()
        assert "outbox.claim 0" in Browser(page).text("/")
    finally:
        page.close()
        app.close()


@pytest.mark.parametrize(
    ("host", "address", "warns"),
    [("127.0.0.1", r"127\.0\.0\.1", False), ("::1", r"\[::1\]", False), ("0.0.0.0", r"0\.0\.0\.0", True)],
)
def test_it_warns_of_who_can_read_and_says_that_its_port_is_taken(
    command: Command, monkeypatch: pytest.MonkeyPatch, host: str, address: str, warns: bool
) -> None:
    def asked_again(_: uvicorn.Server, sockets: list[socket.socket]) -> None:
        refused = command("web", "--host", host, "--port", str(sockets[0].getsockname()[1]))
        assert (refused.exit_code, "Address already in use" in refused.stderr) == (1, True)
        raise KeyboardInterrupt

    monkeypatch.setenv("OUTBOX_WEB_USERS", json.dumps({"anna": {"password": "a long password"}}))
    monkeypatch.setattr(uvicorn.Server, "run", asked_again)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    begun = command("web", "--host", host, "--port", "0")
    assert (begun.exit_code, "others can read the passwords" in begun.stderr) == (0, warns)
    assert re.fullmatch(rf"The page is at http://{address}:\d+/\n", begun.stdout)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'outbox-tasks[web]'" in command("web").stderr
