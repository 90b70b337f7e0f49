"""The pages of messages: what they show to whom, and what no message can do to them."""

from __future__ import annotations

import re
from html import unescape
from itertools import chain
from urllib.parse import parse_qsl
from uuid import UUID, uuid4

import httpx
import pytest
from sqlalchemy import text

from outbox_tasks.operating.messages import paging
from outbox_tasks.operating.messages.acts import Operator
from outbox_tasks.operating.messages.find import Lookup
from outbox_tasks.relay.store import Store
from outbox_tasks.web import Role
from outbox_tasks.web.pages import messages as messages_page
from tests.conftest import Rows, seconds_from_now
from tests.integration.acting import bury
from tests.integration.browsing import Browser, Visit, words


def listed(html: str) -> list[str]:
    """The ids of a list, in their order."""
    return re.findall(r'data-label="message" class="short"><a class="code" href="/messages/([^"]+)"', html)


def link(html: str, text: str) -> dict[str, str] | None:
    """The query of a link with this text."""
    found = re.search(rf'<a href="/messages\?([^"]*)"[^>]*>{text}</a>', html)
    return dict(parse_qsl(unescape(found[1]))) if found else None


def location(answer: httpx.Response) -> str:
    assert answer.status_code == 303, answer.text
    return answer.headers["Location"]


ABSENT = UUID(int=0xABCDEF)
"""Of no message."""


class TestList:
    def test_has_pages(self, visit: Visit, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(messages_page, "ROWS_SHOWN", 3)
        dead = bury(rows, 7)
        rows.insert(2)
        browser, query, found = visit(), {"state": "dead"}, []
        while query:
            html = browser.read("/messages", **query)
            found.append(listed(html))
            query = link(html, "Older") or {}
        assert [len(page) for page in found] == [3, 3, 1]
        assert sorted(chain.from_iterable(found)) == sorted(dead)
        assert listed(browser.read("/messages", **(link(html, "First page") or {}))) == found[0]

    def test_says_where_its_search_ended_and_goes_on(
        self, visit: Visit, rows: Rows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("ROWS_LOOKED_AT", "ROWS_A_LOOK"):
            monkeypatch.setattr(paging, name, 20)
        monkeypatch.setattr(messages_page, "ROWS_SHOWN", 5)
        [wanted] = rows.insert(event_type="order.lost", destination="mails")
        rows.insert(30)
        browser = visit()
        html = browser.read("/messages", type="order.lost")
        assert (listed(html), "Looked at 20 messages" in html) == ([], True)
        html = browser.read("/messages", **(link(html, "Search on from there") or {}))
        assert listed(html) == [wanted]

    def test_says_what_is_wrong_with_a_filter(self, visit: Visit) -> None:
        browser = visit()
        for query, answered in (({"state": "gone"}, "is no state"), ({"at": "<script>"}, "this list has no such page")):
            answer = browser.get("/messages", **query)
            assert (answer.status_code, answered in answer.text, "<script>" in answer.text) == (400, True, False)

    def test_offers_to_choose_what_can_be_changed(self, visit: Visit, rows: Rows) -> None:
        [dead], [waits] = bury(rows), rows.insert()
        [runs] = rows.insert(lease=uuid4(), begun=True, locked_until=seconds_from_now(60))
        html = visit().read("/messages")
        assert re.findall(r'name="id" value="([^"]+)"', html) == [waits, dead]
        assert listed(html) == [runs, waits, dead]
        nothing = visit().get("/acts/new", action="redrive", chosen="yes")
        assert (nothing.status_code, b"no message was chosen" in nothing.content) == (400, True)


class TestSearches:
    def test_on_every_page_lead_to_the_message_or_a_list(self, visit: Visit, rows: Rows) -> None:
        [id] = rows.insert(key="order:42", payload=b'{"total": 4711}')
        [dead] = bury(rows, key="order:43")
        [waits] = rows.insert(key="order:43")
        browser = visit()
        for path in ("/", f"/messages/{id}", "/doctor"):
            assert '<input type="search" id="search" name="q"' in browser.read(path)
        for name in (f" {id.upper()} ", id[:30], "order:42"):
            assert location(browser.get("/search", q=name)) == f"/messages/{id}"
        assert location(browser.get("/search", q="order.created")) == "/messages?type=order.created"
        assert location(browser.get("/search", q="orders")) == "/destinations/orders"
        html = browser.read("/search", q="order:43")
        assert (sorted(listed(html)), "its key" in html) == (sorted([dead, waits]), True)
        text = browser.text("/search", q="order:43")
        assert ("It is dead since 2" in text, "1 message of its key is before it" in text) == (True, True)
        assert location(browser.get("/search", q=" ")) == "/messages"
        assert browser.get("/search", q="a\0").status_code == browser.get("/search", q="a" * 1001).status_code == 400

    def test_say_what_may_be_the_case(self, visit: Visit, rows: Rows) -> None:
        html = visit(Role.LOOK).read("/search", q="<script>alert(1)</script>")
        assert "No message fits. One of these may be the case: It was rolled back, or never published" in words(html)
        assert "<script" not in html.partition("<main")[2]

    def test_run_for_a_short_time(self, visit: Visit, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(messages_page, "STATEMENT_SECONDS", 0.2)
        browser = visit(Role.LOOK)
        assert browser.get("/errors").status_code == 200
        with rows.engine.begin() as other:
            other.execute(text(f"LOCK TABLE {rows.tables.messages.fullname}"))
            answer = browser.get("/messages", type="*a*")
        assert (answer.status_code, b"Name a destination or a key" in answer.content) == (400, True)


class TestMessage:
    def test_shows_its_life_and_what_belongs_to_it(self, visit: Visit, rows: Rows, store: Store) -> None:
        parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        [id] = bury(rows, key="k", payload=b'{"order":42}', headers={"traceparent": parent})
        [behind] = rows.insert(key="k", event_type="order.paid")
        Operator(store, "bob", "it is <mended>").edit(UUID(id), b'{"order":42}', b'{"order":43}', "application/json")
        urls = {"web_flower_url": "https://flower.example.com/", "web_trace_url": "https://t.example.com/{trace_id}"}
        browser = visit(**urls)
        html, text = browser.read(f"/messages/{id}"), browser.text(f"/messages/{id}")
        refused, edited = "http_400: refused: no such order 42", "edited by bob: it is <mended>"
        for shown_words in (refused, "written", edited, '"order": 43'):
            assert shown_words in text
        for there in (
            f"https://flower.example.com/task/{id}", "https://t.example.com/0af7651916cd43dd8448eb211c80319c",
            f"/acts/new?action=redrive&amp;id={id}", f"/acts/new?action=discard&amp;id={id}",
            f"/messages/{id}/payload", "/messages?key=k", "/destinations/orders",
        ):  # fmt: skip
            assert f'href="{there}"' in html
        assert re.search(r'href="/messages\?state=dead&amp;group=[0-9a-f]{12}"', html)
        text = browser.text(f"/messages/{behind}")
        assert re.search(f"1 message of its key is before it.*{id}", text)
        assert "Cancel…" in text

    def test_hides_its_contents_and_what_quotes_them(self, visit: Visit, rows: Rows, store: Store) -> None:
        """What the database role `reader` may not see, the role look does not see either; and it is not even read."""
        secret, large = "the secret of the message", b"x" * 3_000_000
        note = {"at": "2026-11-01T12:00:00+00:00", "what": "failed", "attempt": 1, "code": "x", "error": secret}
        notes = [{**note, "traceback": f"ValueError: {secret}"}]
        quoted = {"last_error": f"unknown: {secret}", "last_error_code": "http_400"}
        headers = {"tenant": secret, "eventid": str(uuid4())}
        [id] = bury(rows, payload=large, headers=headers, history=notes, key="k", **quoted)
        reader = visit(Role.PAYLOAD)
        hidden = Browser(reader.page, Role.LOOK)
        for _ in range(2):  # also while a look of somebody who may see more counts
            assert reader.read(f"/messages/{id}").count(secret) == 4
            html = hidden.read(f"/messages/{id}")
            assert secret not in html
            assert "Traceback" not in html
        assert hidden.get(f"/messages/{id}/payload").status_code == 403
        for path in ("/messages", "/errors", "/destinations/orders", "/keys", "/"):
            assert secret not in hidden.read(path), path
        assert all(secret in reader.read(path) for path in ("/messages", "/errors"))
        one = Lookup(store).one(UUID(id), 0)
        assert one is not None
        assert (one["payload"], one["headers"], one["history"]) == (None, {"eventid": headers["eventid"]}, [])
        assert one["size"] == len(large)

    def test_gives_the_bytes_of_its_payload_as_a_file(self, visit: Visit, rows: Rows) -> None:
        payload = bytes(range(256)) * 5_000
        [id] = rows.insert(payload=payload, content_type="text/html")
        browser = visit(Role.PAYLOAD)
        answer = browser.get(f"/messages/{id}/payload")
        assert answer.content == payload
        assert answer.headers["Content-Type"] == "application/octet-stream"
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{id}.bin"'
        html = browser.read(f"/messages/{id}")
        assert "1,280,000 bytes, too large to be shown" in html

    def test_that_does_not_exist_is_not_found(self, visit: Visit) -> None:
        browser = visit()
        for id in ("nothing", "../etc", str(ABSENT), f"{ABSENT}/x", "%", "\u202e"):
            assert browser.get(f"/messages/{id}").status_code == 404, id

    def test_of_a_task_leads_to_the_task(self, visit: Visit, rows: Rows) -> None:
        task = {"aggregate_type": "celery.task", "aggregate_id": "a/b?c", "locked_by": "shop@host", "lease": uuid4()}
        runs = {"begun": True, "attempts": 1, "handed_at": seconds_from_now(-5), "locked_until": seconds_from_now(60)}
        [id] = rows.insert(**task, **runs)
        browser = visit(web_flower_url="http://f.example.com/flower")
        assert 'href="http://f.example.com/flower/task/a%2Fb%3Fc"' in browser.read(f"/messages/{id}")
        text = browser.text(f"/messages/{id}")
        assert "Run by shop@host" in text
        assert "Handed over" in text
