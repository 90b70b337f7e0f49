"""The page without a database: who may come in, what a form must show, and what it says when it can't answer."""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outbox_tasks.errors import ConfigurationError, DatabaseUnavailable, WebClosed
from outbox_tasks.web import Page, Person, Role, access, render, routes
from outbox_tasks.web.access import Passwords
from outbox_tasks.web.http import LONGEST_FORM, LONGEST_QUERY, Refused, Request, Response, form_of, form_size, query_of
from outbox_tasks.web.looks import MOST, Looks
from outbox_tasks.web.routes import Route
from outbox_tasks.web.visit import Visit, address
from tests.conftest import MakeSettings

PASSWORD = "correct horse battery"
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"
LET_IN = 503
"""The status of a page that nobody refused: it has found no database."""

START = Request("GET", "/")
TOKEN = "t" * 43
FORM = Request(
    "POST", "/acts", form={"csrf": [TOKEN]}, headers={"cookie": f"outbox_csrf={TOKEN}", "host": "page.example"}
)
PERSONS = {role: Person("anna", role) for role in Role}


@pytest.fixture
def make_page(settings: MakeSettings) -> Iterator[Callable[..., Page]]:
    made: list[Page] = []

    def make(**options: Any) -> Page:
        users = {"anna": {"password": PASSWORD, "role": "act"}, "lou": {"password": PASSWORD}}
        made.append(Page(settings(database_url=NOWHERE, web_users=users), **options))
        return made[-1]

    yield make
    for page in made:
        page.close()


@pytest.fixture
def page(make_page: Callable[..., Page]) -> Page:
    return make_page()


@pytest.fixture(autouse=True)
def an_act(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page for each role, and one that takes a form."""

    def nothing(visit: Visit) -> Response:
        return visit.go("/")

    more = [Route("POST", "/acts", Role.ACT, nothing), Route("GET", "/payload/{id}", Role.PAYLOAD, nothing)]
    monkeypatch.setattr(routes, "ROUTES", [route for route in routes.ROUTES if route.pattern != "/acts"] + more)


def signed(name: str = "anna", password: str = PASSWORD, **more: Any) -> Request:
    """A request to the start page with a name and a password."""
    login = base64.b64encode(f"{name}:{password}".encode()).decode()
    return replace(START, headers={"authorization": f"Basic {login}"}, **more)


def header(response: Response, name: str) -> str:
    [value] = [value for header, value in response.headers if header == name]
    return value


class TestWhoMayComeIn:
    def test_without_anybody_who_could_sign_in_there_is_no_page(self, settings: MakeSettings) -> None:
        with pytest.raises(WebClosed, match="nobody could sign in"):
            Page(settings())

    def test_without_a_database_there_is_no_page(self, settings: MakeSettings) -> None:
        with pytest.raises(ConfigurationError, match="database_url"):
            Page(settings(), who=lambda host: None)

    def test_nobody_sees_anything_without_the_password(self, page: Page) -> None:
        wrong = [START, signed(password="correct horse"), signed(name="bob"), signed(name=""), signed(password="")]
        for request in [*wrong, *(replace(START, headers={"authorization": one}) for one in NO_LOGINS)]:
            refused = page.handle(request)
            assert refused.status == 401
            assert header(refused, "WWW-Authenticate").startswith("Basic ")
            assert b"orders" not in refused.body
            assert b"hx-get" not in refused.body  # or the browser would ask for the password every two seconds

    def test_who_has_the_password_comes_in(self, page: Page) -> None:
        assert page.handle(signed()).status == LET_IN

    @pytest.mark.parametrize("name", ["anna", "nobody"])
    def test_after_ten_wrong_passwords_their_client_waits_and_nobody_else(
        self, page: Page, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        attacker, operator = {"client": "192.0.2.1"}, {"client": "192.0.2.2"}
        for _ in range(access.TRIES):
            assert page.handle(signed(name, "wrong", **attacker)).status == 401
        for password in ("wrong", PASSWORD):
            refused = page.handle(signed(name, password, **attacker))
            assert refused.status == 429
            assert 0 < int(header(refused, "Retry-After")) <= 61
        assert page.handle(signed(**operator)).status == LET_IN
        assert page.handle(signed(name="lou", **attacker)).status == LET_IN
        monkeypatch.setattr(access, "MINUTE", 0.0)
        assert page.handle(signed(**attacker)).status == LET_IN

    def test_who_keeps_trying_waits_no_longer(self, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = [1000.0]
        monkeypatch.setattr("outbox_tasks.web.access.time.monotonic", lambda: clock[0])
        for _ in range(100):
            page.handle(signed(password="wrong"))
            clock[0] += 0.1
        assert page.handle(signed()).status == 429
        clock[0] = 1000.0 + access.MINUTE
        assert page.handle(signed()).status == LET_IN

    def test_behind_a_proxy_each_client_is_counted(self, page: Page) -> None:
        def through(proxied: str, name: str = "anna", password: str = "wrong") -> int:
            request = signed(name, password, client="10.0.0.1")
            return page.handle(replace(request, headers={**request.headers, "x-forwarded-for": proxied})).status

        for number in range(access.TRIES):  # what a client says of itself stands before what the proxy says
            assert through(f"10.9.9.{number}, 2001:db8::{number}") == 401
        assert through("10.9.9.99, 2001:db8::99", password=PASSWORD) == 429
        assert through("2001:db8:0:1::1", password=PASSWORD) == LET_IN
        assert through("unknown", password=PASSWORD) == LET_IN

    def test_who_invents_addresses_is_limited_too_and_a_known_browser_goes_on(self, page: Page) -> None:
        browser = {"cookie": f"outbox_csrf={TOKEN}"}
        known = signed(client="10.0.0.1")
        known = replace(known, headers={**known.headers, **browser})
        assert page.handle(known).status == LET_IN
        statuses = []
        for number in range(2 * access.TRIES_OF_ALL):
            guess = signed(password="wrong", client="10.0.0.1")
            forged = {**guess.headers, "x-forwarded-for": f"192.0.2.{number}"}
            statuses.append(page.handle(replace(guess, headers=forged)).status)
        assert statuses.count(401) == access.TRIES_OF_ALL
        assert page.handle(signed(client="10.0.0.1")).status == 429
        assert page.handle(known).status == LET_IN
        wrong = replace(known, headers={**signed(password="wrong").headers, **browser})
        assert [page.handle(wrong).status for _ in range(access.TRIES)] == [401] * access.TRIES
        assert page.handle(known).status == 429

    def test_a_name_that_does_not_exist_is_answered_like_one_that_does(self, page: Page) -> None:
        def answers(name: str) -> list[tuple[int, bytes, list[str]]]:
            found = [page.handle(signed(name, "wrong")) for _ in range(access.TRIES + 5)]
            return [(one.status, one.body, [name for name, _ in one.headers]) for one in found]

        assert answers("anna") == answers("nobody") == answers("another")

    def test_a_flood_of_invented_names_locks_nobody_out_and_takes_no_memory(
        self, page: Page, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(access, "COUNTS", 500)
        monkeypatch.setattr(access, "SESSIONS", 50)
        passwords: Passwords = page._passwords
        for number in range(5_000):
            with suppress(Refused):
                passwords.person(signed(name=f"nobody{number}", password="wrong"))
        for number in range(100):
            request = signed()
            passwords.person(replace(request, headers={**request.headers, "cookie": f"outbox_csrf={number:043}"}))
        assert len(passwords._wrong) <= 500
        assert len(passwords._known) <= 50
        assert page.handle(signed()).status == LET_IN

    def test_the_host_says_who_visits(self, make_page: Callable[..., Page]) -> None:
        page = make_page(who=lambda host: host)
        assert page.handle(replace(START, host=PERSONS[Role.LOOK])).status == LET_IN
        assert page.handle(START).status == 403
        assert page.handle(signed()).status == 403  # the passwords of the settings don't count then

    def test_a_host_that_fails_lets_nobody_in(self, make_page: Callable[..., Page]) -> None:
        refused = make_page(who=lambda host: host["user"]).handle(replace(START, host={}))
        assert refused.status == 500
        assert b"KeyError" not in refused.body

    def test_an_asynchronous_hook_needs_asgi(self, make_page: Callable[..., Page]) -> None:
        async def who(host: Any) -> Person:
            return PERSONS[Role.ACT]

        assert make_page(who=who).handle(START).status == 500


NO_LOGINS = ["", "Basic", "Basic ", "Basic !!!!", "Basic YW5uYQ==", "Bearer x", "Basic /////w==", "Basic " + "A" * 9999]
"""Headers that hold no name and password."""


class TestWhatPeopleMayDo:
    def test_each_role_sees_its_pages_only(self, make_page: Callable[..., Page]) -> None:
        page = make_page(who=lambda host: host)
        for role, person in PERSONS.items():
            for path, needed in (("/", Role.LOOK), ("/payload/1", Role.PAYLOAD)):
                answer = page.handle(replace(START, path=path, host=person))
                assert answer.status == (LET_IN if role >= needed else 403), (role, path)
            assert page.handle(replace(FORM, host=person)).status == (LET_IN if role is Role.ACT else 403)

    def test_on_a_read_only_page_nobody_acts(self, make_page: Callable[..., Page]) -> None:
        page = make_page(who=lambda host: PERSONS[Role.ACT], read_only=True)
        assert b"read-only" in page.handle(FORM).body
        assert page.handle(FORM).status == 403
        assert page.handle(START).status == LET_IN

    @pytest.mark.parametrize(
        "headers",
        [
            {"sec-fetch-site": "same-origin"},
            {"sec-fetch-site": "none"},
            {"sec-fetch-site": "same-origin", "origin": "https://behind-a-proxy.example"},
            {"origin": "https://page.example"},
            {},
            {"cookie": f"a; b=1; x=y z; outbox_csrf={TOKEN}; bad[=]"},
        ],
    )
    def test_a_form_of_our_own_is_taken(self, make_page: Callable[..., Page], headers: dict[str, str]) -> None:
        page = make_page(who=lambda host: PERSONS[Role.ACT])
        assert page.handle(replace(FORM, headers={**FORM.headers, **headers})).status == LET_IN

    @pytest.mark.parametrize(
        ("headers", "form"),
        [
            ({"sec-fetch-site": "cross-site"}, {}),
            ({"sec-fetch-site": "same-site"}, {}),
            ({"sec-fetch-site": "cross-site", "origin": "https://page.example"}, {}),
            ({"origin": "https://evil.example"}, {}),
            ({"origin": "https://page.example.evil.example"}, {}),
            ({"origin": "https://page.example:444"}, {}),
            ({"origin": "null"}, {}),
            ({"origin": "https://[page.example"}, {}),
            ({"cookie": ""}, {}),
            ({"cookie": "outbox_csrf="}, {"csrf": [""]}),
            ({"cookie": "outbox_csrf=short"}, {"csrf": ["short"]}),
            ({}, {"csrf": ["u" * 43]}),
            ({}, {"csrf": []}),
            ({}, {"csrf": ["ü" * 43]}),
            ({}, {"csrf": ["", TOKEN]}),
        ],
    )
    def test_a_form_of_another_site_is_refused(
        self, make_page: Callable[..., Page], headers: dict[str, str], form: dict[str, list[str]]
    ) -> None:
        page = make_page(who=lambda host: PERSONS[Role.ACT])
        refused = page.handle(replace(FORM, headers={**FORM.headers, **headers}, form={**FORM.form, **form}))
        assert refused.status == 403
        assert b"othing was done" in refused.body

    def test_a_form_without_a_token_is_refused(self, make_page: Callable[..., Page]) -> None:
        assert make_page(who=lambda host: PERSONS[Role.ACT]).handle(replace(FORM, form={})).status == 403

    def test_the_cookie_is_for_the_page_alone(self) -> None:
        plain, https = replace(START, root="/out box"), replace(START, secure=True)
        proxied = replace(START, headers={"x-forwarded-proto": "https"})
        assert access.cookie(TOKEN, plain) == f"outbox_csrf={TOKEN}; Path=/out%20box; HttpOnly; SameSite=Strict"
        for encrypted in (https, proxied):
            assert access.cookie(TOKEN, encrypted).endswith("; Path=/; HttpOnly; SameSite=Strict; Secure")


class TestAnswers:
    def test_a_database_that_is_gone_is_said_on_the_page(self, page: Page) -> None:
        trouble = page.handle(signed(query={"a": ["ü&"]}))
        assert trouble.status == 503
        assert b"can&#39;t serve the outbox" in trouble.body
        assert b'hx-get="/?a=%C3%BC%26"' in trouble.body  # so that it recovers by itself

    def test_every_answer_says_what_the_browser_may_load(self, page: Page) -> None:
        for request in (START, signed(), replace(START, path="/static/style.css"), signed(path="/no/such"), FORM):
            answer = page.handle(request)
            assert header(answer, "Content-Security-Policy").startswith("default-src 'none'; script-src 'self'; style")
            assert header(answer, "X-Content-Type-Options") == "nosniff"
            assert header(answer, "Content-Length") == str(len(answer.body))
            kept = "immutable" in header(answer, "Cache-Control")
            assert kept == request.path.startswith("/static/")

    @pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "POST", "get", "\r\nX: y"])
    def test_other_methods_are_refused(self, page: Page, method: str) -> None:
        refused = page.handle(signed(method=method))
        assert refused.status == 405
        assert header(refused, "Allow") == "GET"

    @pytest.mark.parametrize(
        "path", ["/nothing", "//", "/static/", "/static/../page.py", "/static/%2e%2e/page.py", "/\0", "", "/<script>"]
    )
    def test_there_is_nothing_at_other_addresses(self, page: Page, path: str) -> None:
        missing = page.handle(signed(path=path))
        assert missing.status == 404
        assert b"<script>" not in missing.body

    def test_a_head_has_no_body(self, page: Page) -> None:
        head = page.handle(Request("HEAD", "/static/style.css"))
        assert (head.status, head.body) == (200, b"")
        assert int(header(head, "Content-Length")) > 1000

    def test_files_are_there_for_everybody_with_their_licence(self, page: Page) -> None:
        for name in ("style.css", "page.js", "htmx.min.js", "htmx.LICENSE"):
            assert page.handle(replace(START, path=f"/static/{name}")).status == 200
            assert page.handle(replace(START, path=f"/static/{name}", method="POST")).status == 404

    def test_who_waits_too_long_for_a_turn_is_told(self, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("outbox_tasks.web.answers.PATIENCE", 0.01)
        turns = page._own.get().turns
        while turns.acquire(blocking=False):
            pass
        busy = page.handle(signed())
        assert busy.status == 503
        assert b"The page is busy" in busy.body

    def test_a_child_process_has_connections_and_looks_of_its_own(self, page: Page) -> None:
        assert page.handle(signed()).status == LET_IN
        own = page._own.get()
        pid = os.fork()
        if not pid:
            os._exit(page._own.made is not None or page.handle(signed()).status != LET_IN or page._own.get() is own)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class TestWhatArrives:
    @pytest.mark.parametrize(
        ("query", "status"),
        [
            (b"a=" + b"x" * LONGEST_QUERY, 414),
            (b"a=%ff", 400),
            (b"%c3%28=1", 400),
            (b"a=%ed%a0%80", 400),
            (b"a=\xff", 400),
            (b"a=%00", 400),
            (b"a=\0", 400),
            (b"a&" * 1001, 400),
        ],
    )
    def test_a_query_that_nobody_could_mean_is_refused(self, query: bytes, status: int) -> None:
        with pytest.raises(Refused) as refused:
            query_of(query)
        assert refused.value.status == status

    def test_a_query_is_decoded_once(self) -> None:
        assert query_of(b"a=1&a=%252F&b=%zz&c&=d&%C3%BC=+") == {
            "a": ["1", "%2F"], "b": ["%zz"], "c": [""], "": ["d"], "ü": [" "],
        }  # fmt: skip
        assert form_of(b"") == {}

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"content-length": "5"}, 415),
            ({"content-type": "multipart/form-data; boundary=x", "content-length": "5"}, 415),
            ({"content-type": "application/json", "content-length": "5"}, 415),
            ({}, 411),
            ({"content-length": ""}, 411),
            ({"content-length": "-1"}, 411),
            ({"content-length": "٣"}, 411),
            ({"content-length": "1e3"}, 411),
            ({"content-length": "9" * 5000}, 411),
            ({"content-length": str(LONGEST_FORM + 1)}, 413),
        ],
    )
    def test_a_form_that_nobody_filled_in_is_refused(self, headers: dict[str, str], status: int) -> None:
        usual = {} if status == 415 else {"content-type": "application/x-www-form-urlencoded; charset=UTF-8"}
        with pytest.raises(Refused) as refused:
            form_size({**usual, **headers}, LONGEST_FORM)
        assert refused.value.status == status

    def test_a_form_is_read_of_people_who_are_known(self, page: Page) -> None:
        def read(size: int) -> bytes:
            raise AssertionError("it was read")

        headers = {"content-type": "application/x-www-form-urlencoded", "content-length": "7"}
        assert page.respond(replace(START, method="POST", headers=headers), b"", read).status == 401

    def test_a_form_that_came_in_part_is_refused(self, page: Page) -> None:
        head = signed(method="POST", path="/acts")
        headers = {**head.headers, "content-type": "application/x-www-form-urlencoded", "content-length": "7"}
        refused = page.respond(replace(head, headers=headers), b"", lambda size: b"a=1")
        assert (refused.status, b"Only a part" in refused.body) == (400, True)

    def test_only_a_form_with_a_payload_may_be_as_long_as_one(self, page: Page) -> None:
        assert page.longest_form("/acts") == LONGEST_FORM
        assert page.longest_form("/messages/1/edit") == LONGEST_FORM + 3 * 1_048_576

    def test_an_address_holds_any_text(self) -> None:
        assert address("/out", "/destinations/a b/ü?#", {"x": None, "y": ["&", 1]}) == (
            "/out/destinations/a%20b/%C3%BC%3F%23?y=%26&y=1"
        )

    def test_a_path_may_hold_slashes_and_new_lines(self) -> None:
        route = Route("GET", "/destinations/{name}/pause", Role.LOOK, lambda visit: visit.go("/"))
        assert route.fits.fullmatch("/destinations/a/b\n/pause")
        assert not route.fits.fullmatch("/destinations//pause")


class TestTexts:
    HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe\x1b[31m'\"&{{ 7*7 }}\u200b"

    def shown(self, template: str, **names: Any) -> str:
        return str(render.environment().from_string(template).render(names))

    def test_what_others_wrote_is_text(self) -> None:
        shown = self.shown('<b title="{{ x }}">{{ x }}</b>', x=self.HOSTILE)
        assert "<img" not in shown
        assert "49" not in shown
        assert "\\u202egnp.exe\\x1b[31m&#39;&#34;&amp;" in shown
        assert "\\u200b" in shown

    def test_a_field_gives_back_what_it_was_given(self) -> None:
        shown = self.shown('<input value="{{ x|exactly }}">', x=self.HOSTILE)
        assert "&lt;img src=x onerror=alert(1)&gt;\u202egnp.exe\x1b[31m&#39;&#34;&amp;" in shown

    def test_times_are_in_utc(self) -> None:
        moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        assert self.shown("{{ x|when }}", x=moment) == (
            '<time datetime="2026-01-02T03:04:05+00:00" title="2026-01-02 03:04:05 UTC">2026-01-02 03:04:05 UTC</time>'
        )
        now = datetime.now(UTC)
        assert ">5 min ago</time>" in self.shown("{{ x|ago }}", x=now - timedelta(minutes=5))
        assert ">in 5 min</time>" in self.shown("{{ x|ago }}", x=now + timedelta(minutes=5, seconds=1))

    def test_no_template_trusts_texts_or_has_scripts_and_styles_inside(self) -> None:
        for path in (render.HERE / "templates").iterdir():
            text = path.read_text(encoding="utf-8").replace("Never write |safe", "")
            for forbidden in ("|safe", "| safe", "autoescape", " style=", "<style", "javascript:", "hx-on", " onclick"):
                assert forbidden not in text.replace('style="…" or onclick', ""), f"{path.name}: {forbidden}"


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

    def test_a_look_grows_old(self) -> None:
        looks, seen = Looks(), iter(range(10))
        assert looks.get("start", lambda: next(seen), 0.0) == 0
        time.sleep(0.001)
        assert looks.get("start", lambda: next(seen), 60.0) == 1
        assert looks.get("start", lambda: next(seen), 60.0) == 1

    def test_trouble_is_shared_too(self) -> None:
        looks, asked = Looks(), []

        def read() -> None:
            asked.append(1)
            raise DatabaseUnavailable(url="postgresql://db", reason="gone")

        for _ in range(3):
            with pytest.raises(DatabaseUnavailable):
                looks.get("start", read, 60.0)
        assert asked == [1]

    def test_large_ones_are_not_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("outbox_tasks.web.looks.MOST_BYTES", 100_000)
        looks, asked = Looks(), []

        def read(size: int) -> Callable[[], Any]:
            def large() -> list[dict[str, Any]]:
                asked.append(size)
                return [{"payload": b"x" * size, "life": Response(200, [], b"")}]

            return large

        assert looks.get("large", read(200_000), 60.0)[0]["payload"] == b"x" * 200_000
        assert looks._found == {}
        for number in range(30):
            looks.get(f"message {number}", read(10_000), 60.0)
        assert 5 < len(looks._found) < 10
        looks.get("message 29", read(10_000), 60.0)
        assert len(asked) == 31
        looks.forget("message 2")
        assert not any(name.startswith("message 2") for name in looks._found)

    def test_what_counts_no_more_is_not_kept(self) -> None:
        looks = Looks()
        looks.get("old", lambda: "x", 0.0)
        time.sleep(0.001)
        looks.get("new", lambda: "x", 60.0)
        assert list(looks._found) == ["new"]

    def test_they_take_no_end_of_memory(self) -> None:
        looks = Looks()
        for number in range(3 * MOST):
            looks.get(f"message {number}", lambda: number, 60.0)  # noqa: B023
        assert len(looks._found) <= MOST


class TestSettings:
    @pytest.mark.parametrize("user", [{"password": "hunter2"}, "hunter2", {"password": "hunter2", "role": "boss"}])
    def test_a_bad_password_is_refused_and_not_shown(self, settings: MakeSettings, user: Any) -> None:
        with pytest.raises(ConfigurationError) as refused:
            settings(web_users={"anna": user})
        assert "hunter2" not in str(refused.value)

    def test_a_password_is_not_shown(self, settings: MakeSettings) -> None:
        made = settings(web_users={"anna": {"password": PASSWORD}})
        assert PASSWORD not in f"{made!r} {made} {made.web_users}"

    @pytest.mark.parametrize(
        "values",
        [
            {"web_users": {"a:b": {"password": PASSWORD}}},
            {"web_users": {"": {"password": PASSWORD}}},
            {"web_users": {"anna": {"password": PASSWORD, "role": "admin"}}},
            {"web_flower_url": "javascript:alert(1)"},
            {"web_trace_url": "https://traces.example.com/"},
            {"web_trace_url": "javascript:{trace_id}"},
        ],
    )
    def test_what_could_not_work_is_refused(self, settings: MakeSettings, values: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError):
            settings(**values)
