"""The page without a database: who may come in, what a form must show, and what it says when it can't answer."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from io import BytesIO
from typing import Any
from wsgiref.util import setup_testing_defaults

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from outbox_tasks.errors import ConfigurationError, DatabaseUnavailable, WebMisused
from outbox_tasks.web import Page, Person, Role, forms, render, routes, sign_in
from outbox_tasks.web import page as web_page
from outbox_tasks.web.looks import ANSWERS_KEPT, ERROR_SECONDS, Looks
from outbox_tasks.web.routes import Route
from outbox_tasks.web.visit import Visit
from tests.conftest import MakeSettings
from tests.integration.browsing import OWN, Browser, visitor

PASSWORD = "correct horse battery"
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
LET_IN = 503
"""The status of a page that nobody refused: it has found no database."""

MakePage = Callable[..., Page]


@pytest.fixture
def make_page(settings: MakeSettings) -> Iterator[MakePage]:
    made: list[Page] = []

    def make(password: str = PASSWORD, role: str = "act", **options: Any) -> Page:
        users = {"anna": {"password": password, "role": role}, "lou": {"password": PASSWORD}}
        made.append(Page(settings(database_url=NOWHERE, web_users=users), **options))
        return made[-1]

    yield make
    for page in made:
        page.close()


@pytest.fixture
def page(make_page: MakePage) -> Page:
    return make_page()


@pytest.fixture(autouse=True)
def an_act(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page for each role, and one that takes a form."""

    def nothing(visit: Visit) -> Response:
        return visit.go("/")

    more = [Route("POST", "/acts", Role.ACT, nothing), Route("GET", "/payload/{id:path}", Role.PAYLOAD, nothing)]
    monkeypatch.setattr(routes, "ROUTES", [route for route in routes.ROUTES if route.pattern != "/acts"] + more)


def sign(browser: Browser, name: str = "anna", password: str = PASSWORD, **more: Any) -> httpx.Response:
    """Fill in the form."""
    fields = {"name": name, "password": password, "next": more.pop("next", "/")}
    return browser.ask("POST", "/sign-in", data=fields, headers={**OWN, **more.pop("headers", {})}, **more)


def of(address: str) -> dict[str, Any]:
    return {"client": (address, 4711)}


class TestWhoMayComeIn:
    def test_without_anybody_who_could_sign_in_or_a_database_there_is_no_page(self, settings: MakeSettings) -> None:
        with pytest.raises(WebMisused, match="nobody could sign in"):
            Page(settings())
        with pytest.raises(ConfigurationError, match="database_url"):
            Page(settings(), who=visitor)

    def test_nobody_sees_anything_without_the_password(self, page: Page) -> None:
        browser = Browser(page)
        for name, password in (("anna", "correct horse"), ("bob", PASSWORD), ("", PASSWORD), ("anna", ""), ("ä", "ü")):
            assert sign(browser, name, password).status_code == 401
            refused = browser.get("/")
            assert (refused.status_code, "orders" in refused.text) == (401, False)
            assert "data-again" not in refused.text  # who fills in the form is not disturbed
        # A name without a password is answered like one that has one.
        texts = {sign(Browser(page), name, "wrong").text.replace(name, "?") for name in ("anna", "nobody")}
        assert len(texts) == 1

    def test_who_has_the_password_comes_in_and_is_where_they_wanted_to_be_and_signs_out(self, page: Page) -> None:
        browser = Browser(page)
        assert 'name="next" value="/messages?key=%C3%BC+%26"' in browser.get("/messages", key="ü &").text
        let_in = sign(browser, next="/messages?key=%C3%BC+%26")
        assert (let_in.status_code, let_in.headers["Location"]) == (303, "/messages?key=%C3%BC+%26")
        assert browser.get("/messages").status_code == LET_IN
        assert browser.ask("POST", "/sign-out", data={"x": "y"}).status_code == 403, "of another site"
        assert browser.get("/").status_code == LET_IN
        assert browser.post("/sign-out").headers["Location"] == "/"
        assert browser.get("/").status_code == 401

    def test_nobody_is_sent_to_another_site(self, page: Page) -> None:
        for place in ("//evil.example", "https://evil.example", "/\\evil.example", "", "/\r\nX: y"):
            assert sign(Browser(page), next=place).headers["Location"] == "/"

    def test_a_session_counts_in_each_process_until_a_password_changes(self, make_page: MakePage) -> None:
        browser = Browser(make_page())
        sign(browser)
        for page, status in ((make_page(), LET_IN), (make_page(role="look"), 403), (make_page("another one!"), 401)):
            other = Browser(page)
            other.cookies = browser.cookies
            assert other.get("/acts/new").status_code == status
        of_another = sign(Browser(make_page("another one!")), password="another one!").headers["Set-Cookie"]
        assert re.findall(r"outbox_\w+=", of_another) != [f"{name}=" for name in browser.cookies]

    def test_a_session_is_for_the_page_alone(self, page: Page) -> None:
        plain = sign(Browser(page, root_path="/out box")).headers["Set-Cookie"].lower()
        assert plain.endswith("; path=/out%20box; max-age=43200; httponly; samesite=lax")
        proxied = sign(Browser(page), headers={"X-Forwarded-Proto": "https"})
        assert proxied.headers["Set-Cookie"].endswith("; secure")

    def test_after_ten_wrong_passwords_their_client_waits_a_minute(
        self, page: Page, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        clock, browser = [1200.0], Browser(page, **of("192.0.2.1"))
        monkeypatch.setattr("outbox_tasks.web.sign_in.time.monotonic", lambda: clock[0])
        for wrong in range(20):
            assert sign(browser, password="wrong").status_code == (401 if wrong < sign_in.WRONG_OF_A_CLIENT else 429)
            clock[0] += 1
        refused = sign(browser)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "41")
        assert sign(Browser(page, **of("192.0.2.2"))).status_code == 303
        assert sign(browser, "lou").status_code == 303
        clock[0] += sign_in.MINUTE_SECONDS
        for _ in range(sign_in.WRONG_OF_A_CLIENT):  # a new minute has its tries again, and no more
            assert sign(browser, password="wrong").status_code == 401
        assert sign(browser).status_code == 429

    def test_behind_a_proxy_each_client_is_counted_and_who_invents_addresses_too(
        self, page: Page, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sign_in, "WRONG_OF_A_PROXY", 30)

        def through(proxied: str, password: str = "wrong") -> int:
            browser = Browser(page, **of("10.0.0.1"))
            return sign(browser, password=password, headers={"X-Forwarded-For": proxied}).status_code

        # What a client says of itself stands before what the proxy says.
        for number in range(sign_in.WRONG_OF_A_CLIENT):
            assert through(f"10.9.9.{number}, 2001:db8::{number}") == 401
        assert through("10.9.9.99, 2001:db8::99", PASSWORD) == 429
        assert through("10.9.9.99, 2001:db8:0:1::1", PASSWORD) == 303
        signed_in = Browser(page, **of("10.0.0.1"))
        assert sign(signed_in).status_code == 303
        statuses = [through(f"192.0.2.{number}") for number in range(40)]
        assert statuses.count(401) == 20
        assert through("192.0.2.99", PASSWORD) == 429
        assert signed_in.get("/").status_code == LET_IN

    def test_the_host_says_who_visits(self, make_page: MakePage) -> None:
        page = make_page(who=visitor)
        assert Browser(page, Role.LOOK).get("/").status_code == LET_IN
        nobody = Browser(page)
        nobody.headers = {}
        assert nobody.get("/").status_code == 403
        assert nobody.get("/sign-in").status_code == 404  # the passwords of the settings don't count then
        page = make_page(who=lambda scope: scope["user"])
        refused = Browser(page).get("/")
        assert (refused.status_code, "KeyError" in refused.text) == (500, False)
        assert by_wsgi(page, "/")[0].startswith("500 ")

    def test_an_asynchronous_hook_needs_asgi(self, make_page: MakePage) -> None:
        async def who(host: Any) -> Person:
            return Person("anna", Role.ACT)

        page = make_page(who=who)
        assert by_wsgi(page, "/")[0].startswith("500 ")
        assert Browser(page).get("/").status_code == LET_IN


def by_wsgi(page: Page, path: str, body: bytes = b"", **environ: Any) -> tuple[str, bytes]:
    """The status and the body that a WSGI server gets."""
    setup_testing_defaults(environ)
    statuses: list[str] = []
    given = {**environ, "PATH_INFO": path, "wsgi.input": BytesIO(body)}
    answer = b"".join(page.wsgi(given, lambda *head: statuses.append(head[0])))
    return statuses[0], answer


class TestWhatPeopleMayDo:
    def test_each_role_sees_its_pages_only_and_on_a_read_only_page_nobody_acts(self, make_page: MakePage) -> None:
        page = make_page(who=visitor)
        for role in Role:
            browser = Browser(page, role)
            for path, needed in (("/", Role.LOOK), ("/payload/1", Role.PAYLOAD), ("/acts/new", Role.ACT)):
                assert browser.get(path).status_code == (LET_IN if role >= needed else 403), (role, path)
            assert browser.post("/acts").status_code == (LET_IN if role is Role.ACT else 403)
        refused = Browser(make_page(who=visitor, read_only=True)).post("/acts")
        assert (refused.status_code, "read-only" in refused.text) == (403, True)

    def test_a_form_of_our_own_is_taken_and_one_of_another_site_is_refused(self, make_page: MakePage) -> None:
        browser = Browser(make_page(who=visitor))
        own: list[dict[str, str]] = [
            {"sec-fetch-site": "none"},
            {"sec-fetch-site": "same-origin", "origin": "https://behind-a-proxy.example"},
            {"origin": "http://page.example"},
        ]
        for headers in own:
            assert browser.ask("POST", "/acts", headers=headers, data={"x": "y"}).status_code == LET_IN
        others: list[dict[str, str]] = [
            {"sec-fetch-site": "same-site"},
            {"sec-fetch-site": "cross-site", "origin": "http://page.example"},
            {"origin": "http://page.example.evil.example"},
            {"origin": "http://page.example:444"},
            {"origin": "null"},
            {"origin": "https://[page.example"},
            {},
        ]
        for headers in others:
            refused = browser.ask("POST", "/acts", headers=headers, data={"x": "y"})
            assert (refused.status_code, "othing was done" in refused.text) == (403, True), headers


class TestAnswers:
    def test_a_database_that_is_gone_is_said_on_the_page_which_asks_again(self, make_page: MakePage) -> None:
        trouble = Browser(make_page(who=visitor)).get("/keys", a="ü&")
        assert (trouble.status_code, "can&#39;t serve the outbox" in trouble.text) == (503, True)
        assert 'data-again="/keys?a=%C3%BC%26"' in trouble.text

    def test_every_answer_says_what_the_browser_may_load(self, page: Page) -> None:
        browser = Browser(page)
        for path in ("/", "/static/style.css", "/static/nothing", "/no/such", "/sign-in"):
            answer = browser.get(path)
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'; style")
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert ("immutable" in answer.headers["Cache-Control"]) == (path == "/static/style.css")

    def test_there_is_nothing_else(self, page: Page) -> None:
        browser = Browser(page)
        refused = browser.ask("TRACE", "/")
        assert (refused.status_code, sorted(refused.headers["Allow"].split(", "))) == (405, ["GET", "HEAD"])
        assert "takes no TRACE" in refused.text
        for path in ("//", "/static/", "/keys/", "/<script>"):
            missing = browser.get(path)
            assert (missing.status_code, re.search("<script>|data-again", missing.text)) == (404, None), path
        head = browser.ask("HEAD", "/static/style.css")
        assert (head.status_code, head.content, int(head.headers["Content-Length"]) > 500) == (200, b"", True)

    def test_so_many_read_at_once(self, make_page: MakePage, monkeypatch: pytest.MonkeyPatch) -> None:
        reading, most = [], []

        def read(visit: Visit) -> Response:
            reading.append(visit)
            most.append(len(reading))
            time.sleep(0.02)
            reading.pop()
            return visit.go("/")

        monkeypatch.setattr(web_page, "READERS_AT_ONCE", 2)
        monkeypatch.setattr(routes, "ROUTES", [Route("GET", "/read", Role.LOOK, read, without_tables=True)])
        page = make_page(who=visitor)

        async def watch() -> None:
            transport, headers = httpx.ASGITransport(page.asgi), {"X-Person": "anna LOOK"}
            async with httpx.AsyncClient(transport=transport, headers=headers) as client:
                await asyncio.gather(*(client.get("http://page.example/read") for _ in range(6)))

        asyncio.run(watch())
        assert (len(most), max(most)) == (6, 2)

    def test_a_child_process_has_connections_and_looks_of_its_own(self, make_page: MakePage) -> None:
        page = make_page(who=visitor)
        assert by_wsgi(page, "/", HTTP_X_PERSON="anna ACT")[0].startswith("503")
        own = page._shared.get()
        pid = os.fork()
        if not pid:
            status, _ = by_wsgi(page, "/", HTTP_X_PERSON="anna ACT")
            os._exit(not status.startswith("503") or page._shared.get() is own)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class TestWhatArrives:
    def test_a_form_that_nobody_filled_in_is_refused(self, make_page: MakePage) -> None:
        browser = Browser(make_page(who=visitor))
        usual = {**OWN, "content-type": "application/x-www-form-urlencoded; charset=UTF-8"}
        odd: list[tuple[dict[str, str], int]] = [
            ({"content-type": "multipart/form-data; boundary=x"}, 415),
            ({"content-length": ""}, 411),
            ({"content-length": "-1"}, 411),
            ({"content-length": "9" * 5000}, 413),
            ({"content-length": str(forms.FORM_BYTES + 1)}, 413),
        ]
        for headers, status in odd:
            refused = browser.ask("POST", "/acts", headers={**usual, **headers}, content=b"a=1")
            assert refused.status_code == status, headers
        for sent in ("a=%00", "%00=a", "a=1&" * 1001):
            assert browser.ask("POST", "/acts", headers=usual, content=sent.encode()).status_code == 400, sent

    def test_a_form_that_came_in_part_is_refused(self, make_page: MakePage) -> None:
        browser, body = Browser(make_page(who=visitor)), b"a form that is longer"
        environ = {
            "CONTENT_TYPE": "application/x-www-form-urlencoded", "REQUEST_METHOD": "POST",
            "HTTP_X_PERSON": "anna ACT", "HTTP_SEC_FETCH_SITE": "same-origin",
        }  # fmt: skip
        for missing, status in ((20, "415"), (0, "503")):
            length = str(len(body) + missing)
            assert by_wsgi(browser.page, "/acts", body, **environ, CONTENT_LENGTH=length)[0][:3] == status

    def test_an_address_holds_any_text(self) -> None:
        request = Request({"type": "http", "root_path": "/out", "path": "/out/"})
        assert render.url(request, "/destinations/a b/ü?#/..", x=None, y=["&", 1]) == (
            "/out/destinations/a%20b/%C3%BC%3F%23%2F..?y=%26&y=1"
        )


class TestTexts:
    def shown(self, template: str, **names: Any) -> str:
        return str(render.templates().env.from_string(template).render(names))

    def test_what_others_wrote_is_text_and_a_field_gives_it_back(self) -> None:
        hostile = "<img onerror=alert(1)>\u202egnp.exe\x1b[31m'\"&{{ 7*7 }}"
        shown = self.shown('<b title="{{ x }}">{{ x }}</b>', x=hostile)
        assert shown.count("&lt;img onerror=alert(1)&gt;\\u202egnp.exe\\x1b[31m&#39;&#34;&amp;{{ 7*7 }}") == 2
        shown = self.shown('<input value="{{ x|exactly }}">', x=hostile)
        assert "&lt;img onerror=alert(1)&gt;\u202egnp.exe\x1b[31m&#39;&#34;&amp;" in shown

    def test_times_are_in_utc(self) -> None:
        moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        assert self.shown("{{ x|when }}", x=moment) == (
            '<time datetime="2026-01-02T03:04:05+00:00" title="2026-01-02 03:04:05 UTC">2026-01-02 03:04:05 UTC</time>'
        )
        there = moment.astimezone(timezone(timedelta(hours=5)))
        assert self.shown("{{ x|when }}", x=there) == self.shown("{{ x|when }}", x=moment)
        now = datetime.now(UTC)
        assert ">5 min ago</time>" in self.shown("{{ x|ago }}", x=now - timedelta(minutes=5))
        assert ">in 5 min</time>" in self.shown("{{ x|ago }}", x=now + timedelta(minutes=5, seconds=1))


class TestLooks:
    def test_all_who_watch_share_one_look(self) -> None:
        looks, asked, begin = Looks(), [], threading.Barrier(10)
        answers = []

        def read() -> int:
            time.sleep(0.05)
            asked.append(1)
            return len(asked)

        def watch() -> None:
            begin.wait()
            answers.append(looks.get("start", read, 60.0))

        threads = [threading.Thread(target=watch) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [1] * 10
        assert looks.get("other", read, 60.0) == 2

    def test_a_look_grows_old_and_is_not_kept_then(self) -> None:
        looks, seen = Looks(), iter(range(10))
        assert looks.get("start", lambda: next(seen), 0.0) == 0
        looks.get("old", lambda: "x", 0.0)
        time.sleep(0.001)
        assert looks.get("start", lambda: next(seen), 60.0) == 1
        assert looks.get("start", lambda: next(seen), 60.0) == 1
        assert list(looks._answers) == ["start"]
        for number in range(3 * ANSWERS_KEPT):
            looks.get(f"message {number}", lambda: number, 60.0)  # noqa: B023
        assert len(looks._answers) <= ANSWERS_KEPT
        looks.forget("message ")
        assert not looks._answers

    def test_trouble_is_shared_too_but_not_for_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        looks, asked = Looks(), []

        def read() -> None:
            asked.append(1)
            raise DatabaseUnavailable(url="postgresql://db", reason="gone")

        for _ in range(3):
            with pytest.raises(DatabaseUnavailable):
                looks.get("start", read, 60.0)
        assert asked == [1]
        clock = time.monotonic() + ERROR_SECONDS
        monkeypatch.setattr("outbox_tasks.web.looks.time.monotonic", lambda: clock)
        assert looks.get("start", lambda: "it is back", 60.0) == "it is back"


def test_what_could_not_work_is_refused_and_no_password_is_shown(settings: MakeSettings) -> None:
    wrong: list[dict[str, Any]] = [
        {"web_users": {"anna": {"password": "hunter2"}}},
        {"web_users": {"anna": "hunter2"}},
        {"web_users": {"anna": {"password": PASSWORD, "role": "admin"}}},
        {"web_users": {"a:b": {"password": PASSWORD}}},
        {"web_users": {"": {"password": PASSWORD}}},
        {"web_flower_url": "javascript:alert(1)"},
        {"alert_webhook": "slack://hunter2"},
        {"alert_webhook": "https:///hunter2"},
        {"web_trace_url": "https://traces.example.com/"},
        {"web_trace_url": "javascript:{trace_id}"},
    ]
    for values in wrong:
        with pytest.raises(ConfigurationError) as refused:
            settings(**values)
        assert "hunter2" not in str(refused.value)
