"""Every page that there is, over an outbox full of hostile texts, and asked with hostile values: nobody's text becomes
part of the page, and nothing makes it fail."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import DateTime, Engine, cast, literal
from sqlalchemy.dialects.postgresql import JSONB

from outbox_tasks.settings import Settings
from outbox_tasks.web import Page, Person, Role, forms, visit
from outbox_tasks.web.forms import fields_of
from outbox_tasks.web.routes import ROUTES, Route
from tests.conftest import Rows, make_tables, own_schema, seconds_from_now
from tests.integration.acting import bury
from tests.integration.browsing import Browser, walk
from tests.integration.every_state import DESTINATIONS, SAYS, STATES, write

MARKUP = "</td><img src=x onerror=alert(1)>'\"{{ 7*7 }}\u202egnp\x1b[31m&lt;"
"""If any of it is seen as it is, a page trusted it."""

VALUES = [
    MARKUP, "-1", "0", "9" * 40, "1e999", "nan", "0x10", "٣", "%", "_\\", "../../etc/passwd", "\ud7ff\U0010ffff",
    "x" * 4000, "infinity", "0001-01-01", "10000-01-01", "2026-11-22T00:00:00+99:99", str(UUID(int=7)),
    "a\0b", "1 OR 1=1; --", "\r\nSet-Cookie: a=b",
]  # fmt: skip

BAD = [MARKUP, "-1", "9" * 40, "nan", "٣", "10000-01-01", "infinity", "x" * 4000]
"""What each field is asked with: no number, no time, and too much of them."""


EVIL = '<script>alert(1)</script></textarea></pre>" onclick="x\' javascript:alert(1) \x1b[31m\u202e\u2066\u200b\x07 & '
DEEP = "[" * 2_000 + "]" * 2_000
HUGE = "1" + "0" * 6_000


ALWAYS = cast(literal("infinity"), DateTime(True))


def json_text(text: str) -> Any:
    """JSON as a writer in SQL may have it, whatever Python makes of it."""
    return cast(literal(text), JSONB)


MESSAGES: list[dict[str, Any]] = [
    {
        "payload": (EVIL * 20_000).encode(), "headers": {EVIL + str(n): EVIL * 5 for n in range(80)},
        "key": (EVIL * 3)[:255], "event_type": (EVIL * 3)[:255], "content_type": EVIL, "aggregate_id": EVIL * 9,
        "aggregate_type": EVIL * 9, "last_error": EVIL * 900, "last_error_code": EVIL, "locked_by": EVIL * 9,
        "history": [{"at": EVIL, "what": EVIL * 9, "by": EVIL, "error": EVIL, "traceback": EVIL * 900}] * 40,
    },
    {"payload": b'"' * 1_000_000, "headers": {"x": "&" * 60_000}, "last_error": "'" * 100_000},
    {"payload": b"\xff\xfe" * 500_000, "headers": ["no", "object"], "history": {"no": "list"}},
    {"payload": DEEP.encode(), "headers": json_text(DEEP), "history": json_text(DEEP)},
    {"payload": f"[{HUGE}]".encode(), "headers": json_text(HUGE), "history": json_text(f"[{HUGE}]")},
    {"payload": b"1e9999", "headers": "text", "history": [1, None, {"at": 5, "what": [], "attempt": ""}]},
    {"payload": b"", "history": [{"entry": 7, "at": "9999-12-31T23:59:59-12:00", "traceback": {"a": 1}}]},
    {"payload": b"<svg onload=x>", "content_type": "image/svg+xml", "attempts": 2**31 - 1},
    {"headers": {"traceparent": "javascript:alert(1)", "eventid": EVIL}, "created_at": ALWAYS},
]  # fmt: skip


class Asked(dict[str, list[str]]):
    """The fields of a query or a form; it remembers for which it was asked."""

    names: set[str]

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the fields that pages ask for."""
    names: set[str] = set()

    def fields(items: Iterable[tuple[str, object]]) -> Asked:
        found = Asked(fields_of(items))
        found.names = names
        return found

    monkeypatch.setattr(forms, "fields_of", fields)
    monkeypatch.setattr(visit, "fields_of", fields)
    return names


@pytest.fixture(scope="module")
def browser(postgres_url: str, engine: Engine) -> Iterator[Browser]:
    with own_schema(engine) as schema:
        make_tables(engine, schema)
        rows = Rows(engine, schema)
        hostile = {"event_type": MARKUP, "key": MARKUP, "payload": MARKUP.encode(), "destination": MARKUP}
        rows.insert(3, **hostile)
        rows.insert(
            3, **hostile, status="dead", last_error_code=MARKUP, last_error=MARKUP, dead_at=seconds_from_now(-1)
        )
        rows.insert(2, content_type=MARKUP, headers={"x": MARKUP, MARKUP: "y"}, payload=bytes(range(256)))
        long = dict.fromkeys(("last_error_code", "last_error", "key", "event_type"), '"' * 255)
        bury(rows, 60, **long)
        for columns in MESSAGES:
            bury(rows, **columns)
        for state in STATES:
            for more in SAYS.values():
                write(rows, state, more)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"SET LOCAL search_path = {schema}")
            for statement in DESTINATIONS.split(";\n"):
                connection.exec_driver_sql(statement)
        settings = Settings(
            database_url=postgres_url,
            database_schema=schema,
            destinations={
                "orders": {"url": "redis+stream://localhost:6379/0/orders"},
                "<b>": {"url": "http://x.example"},
            },
            web_trace_url="https://t.example.com/{trace_id}",
            web_flower_url="https://f.example.com",
        )
        page = Page(settings, who=lambda scope: Person(MARKUP, Role[dict(scope["headers"])[b"x-person"][5:].decode()]))
        yield Browser(page)
        page.close()


def harmless(answer: httpx.Response) -> None:
    assert answer.status_code != 500
    if answer.headers.get("Content-Type", "").startswith("text/html"):
        text = answer.text
        assert len(text) < 200_000
        for trusted in ("<script>", "<svg onload", 'onclick="', 'href="javascript:'):
            assert trusted not in text
        assert "<img" not in text
        assert "alert(1)>" not in text
        # A field sends back what it was given.
        shown = re.sub(r'(?:value|data-copy)="[^"]*"|<textarea.*?</textarea>', "", text, flags=re.DOTALL)
        assert not set("\x1b\u202e\u2066\u200b\x07\0") & set(shown)
    for name, value in answer.headers.items():
        assert "\n" not in f"{name}{value}"
        assert value.isascii()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.pattern}")
def test_nothing_makes_a_page_fail_or_trust_a_text(browser: Browser, asked: set[str], route: Route) -> None:
    def ask(value: str, **field: str) -> None:
        path = re.sub(r"\{\w+:path\}", lambda _: value, route.pattern)
        is_form = route.method == "POST"
        harmless(browser.post(path, **{"why": "because", **field}) if is_form else browser.get(path, **field))

    for value in VALUES if "{" in route.pattern else [""]:
        ask(value)
    for name in list(asked):
        for value in BAD:
            ask("orders", **{name: value})


def test_all_links_lead_somewhere(browser: Browser) -> None:
    """From the start page on, also to what has hostile names, and to each odd message."""
    seen = set()
    for each in (browser, Browser(browser.page, Role.LOOK)):
        for link, answer in walk(each, 60):
            harmless(answer)
            seen.add(link)
    assert any("/destinations/%3C/td%3E%3Cimg%20src" in link for link in seen)
    shown = sum(bool(re.fullmatch("/messages/[0-9a-f-]{36}", link)) for link in seen)
    assert shown > len(MESSAGES) + len(STATES) * len(SAYS)
