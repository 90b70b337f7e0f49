"""The pages over the whole outbox, asked without a server, over the real tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Any

import pytest
from sqlalchemy import event, func

from outbox_tasks.operating import pauses
from outbox_tasks.relay.store import Store
from outbox_tasks.settings import Settings
from outbox_tasks.web import Page, Person, Role
from outbox_tasks.web.http import Request, Response
from tests.conftest import MakeSettings, Rows, seconds_from_now

EVIL = "<script>alert(1)</script> & \u202e 100%/a?b#c 'q\" \x07"
"""A name as somebody might choose it to harm the page."""
LONG = "🦊" * 255

DESTINATIONS = {name: {"url": "redis+stream://localhost/1/x"} for name in ("orders", "mails", EVIL, LONG)}

Open = Callable[..., Page]


class Browser:
    """Somebody who visits a page."""

    def __init__(self, page: Page, role: Role = Role.ACT) -> None:
        self.page, self.person = page, Person("anna", role)
        self.token = "t" * 43
        self.headers = {"cookie": f"outbox_csrf={self.token}"}

    def get(self, path: str, **query: str) -> Response:
        asked = {name: [value] for name, value in query.items()}
        return self.page.handle(Request("GET", path, query=asked, headers=self.headers), self.person)

    def post(self, path: str, **form: str) -> Response:
        sent = {name: [value] for name, value in {"csrf": self.token, **form}.items()}
        return self.page.handle(Request("POST", path, form=sent, headers=self.headers), self.person)

    def read(self, path: str, **query: str) -> str:
        """The page's HTML."""
        answer = self.get(path, **query)
        assert answer.status == 200, answer.body.decode()
        return answer.body.decode()

    def text(self, path: str, **query: str) -> str:
        """The words on the page."""
        return words(self.read(path, **query))


def words(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


@pytest.fixture
def visit(store: Store, settings: MakeSettings) -> Iterator[Callable[..., Browser]]:
    """Makes browsers of a page over the test's tables. Each page looks anew."""
    made: list[Page] = []

    def make(role: Role = Role.ACT, **values: Any) -> Browser:
        given: Settings = settings(**{"destinations": DESTINATIONS, "broker_url": None, **values})
        made.append(Page(given, who=lambda host: None))
        return Browser(made[-1], role)

    yield make
    for page in made:
        page.close()


Visit = Callable[..., Browser]


def beat(rows: Rows, name: str, kind: str = "worker", ago: float = 1.0, **facts: Any) -> None:
    """A heartbeat, as if of a process."""
    usual = {"queues": ["outbox.publish"], "pool": "prefork", "concurrency": 4}
    made = {"name": name, "kind": kind, "seen_at": seconds_from_now(-ago), "facts": {**usual, **facts}}
    with rows.engine.begin() as connection:
        connection.execute(rows.tables.heartbeats.insert().values(**made))


def sent(rows: Rows, destination: str, **outcomes: int) -> None:
    """Outcomes that were counted in this minute."""
    with rows.engine.begin() as connection:
        for outcome, count in outcomes.items():
            minute = func.date_trunc("minute", func.now())
            row = {"minute": minute, "destination": destination, "outcome": outcome, "count": count}
            connection.execute(rows.tables.tallies.insert().values(**row))


def statements(browser: Browser, path: str, **query: str) -> list[str]:
    """The statements that a first look at a page runs."""
    found: list[str] = []
    engine = browser.page._own.get().store.engine
    event.listen(engine, "before_cursor_execute", lambda c, cursor, statement, *_: found.append(statement))
    browser.read(path, **query)
    return found


def dead(rows: Rows, count: int = 1, **columns: Any) -> list[str]:
    usual = {"last_error_code": "http_400", "last_error": "refused", "attempts": 3}
    return rows.insert(count, status="dead", dead_at=seconds_from_now(-60), **{**usual, **columns})


class TestStart:
    def test_trouble_comes_first_with_a_link_to_where_it_is_mended(
        self, visit: Visit, store: Store, rows: Rows
    ) -> None:
        dead(rows, 2)
        dead(rows, key="k")
        rows.insert(4, key="k")
        rows.insert(3, destination="mails", locked_until=seconds_from_now(-7200))
        rows.insert(2, destination=EVIL)
        pauses.pause(store, EVIL, "bob <i>", "moving </main> house")
        beat(rows, "publish@lost", ago=600)
        browser = visit()
        html, text = browser.read("/"), browser.text("/")
        said = [
            ("mails: the oldest message has been due for 2 h", "/destinations/mails"),
            ("no worker consumes outbox.publish: publish@lost was last seen 10 min ago", "/workers"),
            ("3 dead letters wait for a person", "/errors"),
            ("orders has keys that a dead message holds up: 1", "/keys?destination=orders"),
        ]
        for what, where in said:
            assert f'<a href="{where}">{what}</a>' in html
        assert "is paused by bob <i> since" in text
        assert "moving </main> house" in text
        first = re.findall(r'<th scope="row" data-label="destination"><a href="([^"]*)"', html)
        assert first[:3] == ["/destinations/mails", "/destinations/orders", first[2]]
        assert first[2].startswith("/destinations/%3Cscript%3E")
        assert "publish@lost ✗ lost outbox.publish prefork × 4 10 min ago" in text
        assert text.index("3 dead letters") < text.index("Destinations")

    def test_nothing_that_others_wrote_is_markup(self, visit: Visit, rows: Rows) -> None:
        rows.insert(1, destination=EVIL)
        sent(rows, EVIL, sent=3, dead=1)
        beat(rows, EVIL, queues=[EVIL], pool=EVIL)
        html = visit().read("/")
        assert "<script>alert" not in html
        assert "\u202e" not in html
        assert "\x07" not in html
        assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; \\u202e 100%/a?b#c" in html

    def test_the_chart_of_a_destination_says_what_it_shows(self, visit: Visit, rows: Rows) -> None:
        sent(rows, "orders", sent=1200, retry=3)
        html = visit().read("/")
        assert "<title>orders: 1,200 sent and 3 failed in the last 6 hours</title>" in html
        assert html.count('<path class="sent"') == html.count('<path class="failed"') == 1
        assert "style=" not in html

    def test_of_many_destinations_the_worst_are_shown_and_the_others_found(self, visit: Visit, rows: Rows) -> None:
        many = {f"tenant-{n:03}": {"url": "redis+stream://localhost/1/x"} for n in range(150)}
        rows.insert(5, destination="tenant-149")
        for n in range(60):
            beat(rows, f"publish@{n:02}")
        browser = visit(destinations=many)
        html = browser.read("/")
        shown = re.findall(r'data-label="destination"><a href="/destinations/([^"]*)"', html)
        assert shown[:2] == ["tenant-149", "tenant-000"]
        assert len(shown) == 100
        assert "There are 50 more" in html
        assert "All 60 workers" in html
        assert len(html) < 150_000
        found = browser.read("/", find="ANT-12")
        assert len(re.findall('data-label="destination"><a', found)) == 10
        assert "No destination has this in its name." in browser.read("/", find="nowhere")

    def test_an_empty_outbox_is_in_order(self, visit: Visit, rows: Rows) -> None:
        for kind in ("claim", "beat", "publish", "maintain"):
            beat(rows, kind, kind)
        beat(rows, "all@here", queues=["outbox.claim", "outbox.publish", "outbox.maintain"])
        text = visit().text("/")
        assert "✓ In order." in text
        assert "not asked: OUTBOX_BROKER_URL is not set" in text

    def test_it_costs_so_many_round_trips_for_all_who_watch(self, visit: Visit, rows: Rows) -> None:
        rows.insert(3)
        browser = visit()
        assert len(statements(browser, "/")) <= 14
        assert statements(browser, "/") == []


def test_without_tables_or_a_database_the_page_says_so(settings: MakeSettings) -> None:
    for values, words in (({}, "outbox-tasks init"), ({"database_url": "postgresql://x@127.0.0.1:1/x"}, "can't serve")):
        page = Page(settings(broker_url=None, **values), who=lambda host: None)
        try:
            for path in ("/",):
                answer = Browser(page).get(path)
                assert answer.status == 503, path
                assert words in unescape(answer.body.decode())
        finally:
            page.close()
