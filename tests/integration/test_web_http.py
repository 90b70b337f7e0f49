"""The page over real HTTP: `outbox-tasks web` (waitress) and the ASGI application (uvicorn), asked by hand."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from sqlalchemy import Engine, make_url

from lab.proxy import Proxy
from outbox_tasks.settings import Settings
from outbox_tasks.web import Page, Person, Role, server
from outbox_tasks.web.http import Request
from outbox_tasks.web.server import Server
from tests.conftest import Rows, eventually, make_tables, own_schema

PASSWORD = "correct horse battery"
LOGIN = "Authorization: Basic " + base64.b64encode(f"anna:{PASSWORD}".encode()).decode()
FORM = "Content-Type: application/x-www-form-urlencoded"

Ask = Callable[..., tuple[int, dict[str, str], str]]


@pytest.fixture(scope="module")
def settings(postgres_url: str, engine: Engine) -> Iterator[Settings]:
    """An outbox for all tests of this module."""
    with own_schema(engine) as schema:
        make_tables(engine, schema)
        yield Settings(
            database_url=postgres_url,
            database_schema=schema,
            destinations={"orders": {"url": "redis+stream://localhost:6379/0/orders"}},
            web_users={"anna": {"password": PASSWORD, "role": "act"}},
        )


@pytest.fixture
def rows(settings: Settings, engine: Engine) -> Rows:
    return Rows(engine, settings.database_schema or "")


@pytest.fixture(scope="module")
def standalone(settings: Settings) -> Iterator[subprocess.Popen[str]]:
    """`outbox-tasks web`; it ends in order."""
    users = {"anna": {"password": PASSWORD, "role": "act"}}
    env = {
        "OUTBOX_DATABASE_URL": settings.database_url or "",
        "OUTBOX_DATABASE_SCHEMA": settings.database_schema or "",
        "OUTBOX_WEB_USERS": json.dumps(users),
        "OUTBOX_DESTINATIONS": json.dumps({"orders": {"url": settings.destinations["orders"].url}}),
    }
    argv = [sys.executable, "-m", "outbox_tasks", "web", "--port", "0"]
    with subprocess.Popen(argv, env={**os.environ, **env}, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@contextmanager
def uvicorn_serves(app: Any, **options: Any) -> Iterator[int]:
    """The port of an ASGI application."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", **options))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module", params=["wsgi", "asgi", "asgi below /outbox"])
def ask(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Ask]:
    """Asks the page: with the lines of a head, and a body. The three are one page in three places."""
    if request.param == "wsgi":
        process: subprocess.Popen[str] = request.getfixturevalue("standalone")
        found = re.fullmatch(r"The page is at http://127.0.0.1:(\d+)/\n", process.stdout.readline())  # type: ignore[union-attr]
        assert found
        yield asking(int(found[1]), "")
        return
    root = "/outbox" if "below" in request.param else ""
    page = Page(settings)
    with uvicorn_serves(page.asgi, root_path=root) as port:
        yield asking(port, root)


def asking(port: int, root: str) -> Ask:
    def ask(line: str = "GET /", *head: str, body: bytes = b"", root: str = root) -> tuple[int, dict[str, str], str]:
        method, _, path = line.partition(" ")
        lines = [f"{method} {path if root == '/outbox' else root + path} HTTP/1.1", "Host: page.example", *head]
        answer = b""
        with (
            socket.create_connection(("127.0.0.1", port), 30) as connection,
            suppress(ConnectionError),  # a server need not read what it refuses
        ):
            connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1") + body)
            while more := connection.recv(65_536):
                answer += more
        top, _, text = answer.partition(b"\r\n\r\n")
        first, *rest = top.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in rest)}
        return int(first.split()[1]), headers, text.decode()

    return ask


def test_the_start_page_comes_with_its_files(ask: Ask) -> None:
    status, headers, body = ask("GET /", LOGIN)
    assert (status, int(headers["content-length"])) == (200, len(body.encode()))
    assert "<h1" in body
    assert "orders" in body
    for path in re.findall(r'(?:src|href)="(?:/outbox)?(/static/[^"]+)"', body):
        status, headers, _ = ask(f"GET {path}")
        assert status == 200
        assert "immutable" in headers["cache-control"]


def test_a_head_is_an_answer_without_a_body(ask: Ask) -> None:
    status, headers, body = ask("HEAD /", LOGIN)
    assert (status, body) == (200, "")
    assert int(headers["content-length"]) > 500


def test_nobody_comes_in_without_a_password(ask: Ask) -> None:
    for head in ((), ("Authorization: Basic AAAA",), ("Authorization: Basic \xff",), ("Cookie: outbox_csrf=x",)):
        status, headers, body = ask("GET /", *head)
        assert (status, headers["www-authenticate"][:5]) == (401, "Basic")
        assert "orders" not in body


def test_the_cookie_of_the_forms_is_given_once(ask: Ask) -> None:
    _, headers, _ = ask("GET /", LOGIN)
    cookie = headers["set-cookie"]
    assert re.fullmatch(r"outbox_csrf=[\w-]{43}; Path=/(outbox)?; HttpOnly; SameSite=Strict", cookie)
    assert "set-cookie" not in ask("GET /", LOGIN, f"Cookie: a=b; {cookie.partition(';')[0]}")[1]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET /no%2Fsuch", 404),
        ("GET /%zz", 404),
        ("GET /%ff%fe", 404),
        ("GET /%00", 404),
        ("GET /static/%2e%2e/page.py", 404),
        ("GET /%3Cscript%3Ealert(1)%3C/script%3E", 404),
        ("GET /?a=%ff", 400),
        ("GET /?a=%00", 400),
        ("GET /?a=" + "x" * 9000, 414),
        ("PUT /", 405),
        ("OPTIONS /", 405),
        ("POST /", 415),
    ],
)
def test_odd_requests_are_answered_with_words(ask: Ask, line: str, status: int) -> None:
    found, headers, body = ask(line, LOGIN, "Content-Length: 0")
    assert found == status
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert 'role="alert"' in body
    assert "<script>" not in body


@pytest.mark.parametrize(
    ("head", "body", "status"),
    [
        ([FORM, "Content-Length: 3"], b"a=1", 405),
        ([FORM, "Content-Length: 5"], b"a=%ff", 400),
        ([FORM, "Content-Length: 3"], b"a=\xff", 400),
        ([FORM, "Content-Length: 2002"], b"a&" * 1001, 400),
        (["Content-Type: multipart/form-data; boundary=x", "Content-Length: 3"], b"a=1", 415),
    ],
)
def test_odd_forms_are_refused(ask: Ask, head: list[str], body: bytes, status: int) -> None:
    assert ask("POST /", LOGIN, *head, body=body)[0] == status


def test_a_form_far_too_long_is_not_read(ask: Ask) -> None:
    assert ask("POST /", LOGIN, FORM, f"Content-Length: {2**33}")[0] == 413


@contextmanager
def serving(page: Page) -> Iterator[int]:
    """The port of the server of `outbox-tasks web`."""
    listener = socket.create_server(("127.0.0.1", 0))
    waiting = Server(page.wsgi, listener, threads=4)
    thread = threading.Thread(target=waiting.run)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        waiting.task_dispatcher.shutdown()
        waiting.asyncore.close_all(waiting._map)  # its loop ends when it has nothing left
        thread.join()
        listener.close()
        page.close()


class TestHalfOpenConnections:
    def test_do_not_keep_others_out(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "MOST", 20)
        with serving(Page(settings)) as port, ExitStack() as stack:
            held = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(110)]
            for number, one in enumerate(held):
                with suppress(OSError):  # it may be closed already
                    one.sendall(b"GET / HTTP/1.1\r\nX: "[: number % 18])
            ask = asking(port, "")
            assert ask("GET /static/style.css")[0] == 200
            assert ask("GET /", LOGIN)[0] == 200
            for one in held[-10:]:  # those that came last are still open
                one.sendall(b"x")

    def test_are_closed_though_a_byte_comes_now_and_then(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "HEAD", 0.5)
        with serving(Page(settings)) as port, socket.create_connection(("127.0.0.1", port), 30) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nX: ")
            slow.settimeout(0.1)

            def closed() -> bool:
                try:
                    slow.sendall(b"x")
                    return slow.recv(1) == b""
                except TimeoutError:
                    return False
                except ConnectionError:
                    return True

            assert eventually(closed)


def test_a_long_payload_is_downloaded_in_pieces(ask: Ask, rows: Rows) -> None:
    [id] = rows.insert(payload=b"0123456789abcde\n" * 600_000)  # more than two pieces
    _, headers, body = ask(f"GET /messages/{id}/payload", LOGIN)
    assert int(headers["content-length"]) == len(body) == 9_600_000
    assert body == "0123456789abcde\n" * 600_000


class TestAsgi:
    @pytest.mark.filterwarnings("ignore:The .root_path. parameter is deprecated")
    @pytest.mark.parametrize("stripped", [True, False])
    def test_behind_a_proxy_with_a_prefix_each_page_is_found(self, settings: Settings, stripped: bool) -> None:
        app = FastAPI(root_path="/proxied")
        page = Page(settings)
        app.mount("/outbox", page.asgi)
        with uvicorn_serves(app) as port:
            ask = asking(port, "")
            before = "/outbox" if stripped else "/proxied/outbox"
            for path in ("/", "/messages", "/errors"):
                status, _, body = ask(f"GET {before}{path}", LOGIN)
                assert status == 200
                assert 'href="/proxied/outbox/messages"' in body
        page.close()

    def test_an_asynchronous_hook_says_who_visits(self, settings: Settings) -> None:
        async def who(scope: dict[str, Any]) -> Person | None:
            await asyncio.sleep(0)
            name = dict(scope["headers"]).get(b"x-user")
            return Person(name.decode(), Role.LOOK) if name else None

        page = Page(settings, who=who)
        with uvicorn_serves(page.asgi) as port:
            ask = asking(port, "")
            assert ask("GET /", "X-User: ida")[0] == 200
            assert "ida" in ask("GET /", "X-User: ida")[2]
            assert ask("GET /")[0] == 403
            assert ask("POST /", "X-User: ida", FORM, "Content-Length: 0")[0] == 405

    def test_a_slow_page_holds_up_no_other(self, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        page = Page(settings)
        turns = page._own.get().turns
        while turns.acquire(blocking=False):
            pass
        with uvicorn_serves(page.asgi) as port:
            ask = asking(port, "")
            answers: list[int] = []
            waiting = threading.Thread(target=lambda: answers.append(ask("GET /", LOGIN)[0]))
            waiting.start()
            assert ask("GET /static/style.css")[0] == 200
            assert ask("GET /")[0] == 401
            turns.release()
            waiting.join()
            assert answers == [200]


def test_the_page_says_what_is_wrong_with_the_database_and_recovers(
    postgres_url: str, engine: Engine, schema: str
) -> None:
    url = make_url(postgres_url)
    with Proxy(url.port or 0) as proxy:
        far = url.set(port=proxy.port).render_as_string(hide_password=False)
        page = Page(Settings(database_url=far, database_schema=schema), who=lambda host: Person("anna", Role.ACT))

        def says(status: int, text: bytes) -> bool:
            answer = page.handle(Request("GET", "/"))
            return (answer.status, text in answer.body) == (status, True)

        assert says(503, b"Run `outbox-tasks init` once")
        make_tables(engine, schema)
        assert eventually(lambda: says(200, b"<h1"))
        proxy.refuses = True
        proxy.reset()
        assert eventually(lambda: says(503, b"can&#39;t serve the outbox"))
        assert b'id="live" hx-get="/"' in page.handle(Request("GET", "/")).body
        proxy.refuses = False
        assert eventually(lambda: says(200, b"<h1"))
        page.close()
