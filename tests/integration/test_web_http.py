"""The page over real HTTP: `outbox-tasks web`, the ASGI application below a prefix (uvicorn), and the WSGI one."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlencode
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
import uvicorn
from fastapi import FastAPI
from sqlalchemy import Engine
from starlette.middleware.sessions import SessionMiddleware
from starlette.requests import Request

from outbox_tasks.settings import Settings
from outbox_tasks.web import Page, Person, Role
from tests.conftest import Rows, eventually, make_tables, own_schema

PASSWORD = "correct horse battery"
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


class Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def wsgi_serves(app: Any) -> Iterator[int]:
    """The port of a WSGI application."""
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module", params=["by itself", "wsgi", "asgi below /outbox"])
def ask(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Ask]:
    """Asks the page: with the lines of a head, and a body. The three are one page in three places."""
    if request.param == "by itself":
        process: subprocess.Popen[str] = request.getfixturevalue("standalone")
        found = re.fullmatch(r"The page is at http://127.0.0.1:(\d+)/\n", process.stdout.readline())  # type: ignore[union-attr]
        assert found
        yield asking(int(found[1]), "")
        return
    page = Page(settings)
    if request.param == "wsgi":
        with wsgi_serves(page.wsgi) as port:
            yield asking(port, "")
    else:
        with uvicorn_serves(page.asgi, root_path="/outbox", lifespan="on") as port:
            yield asking(port, "/outbox")
    page.close()


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


def session_of(ask: Ask) -> str:
    """The head of somebody who has signed in."""
    form = urlencode({"name": "anna", "password": PASSWORD, "next": "/"}).encode()
    own = "Origin: http://page.example"
    status, headers, _ = ask("POST /sign-in", FORM, own, f"Content-Length: {len(form)}", body=form)
    assert status == 303
    assert re.fullmatch(
        r"outbox_\w{8}=\S+; path=/[a-z/]*; Max-Age=43200; httponly; samesite=lax", headers["set-cookie"]
    )
    return f"Cookie: a=b; {headers['set-cookie'].partition(';')[0]}"


@pytest.fixture(scope="module")
def session(ask: Ask) -> str:
    return session_of(ask)


def test_the_start_page_comes_with_its_files(ask: Ask, session: str) -> None:
    status, headers, body = ask("GET /", session)
    assert (status, int(headers["content-length"])) == (200, len(body.encode()))
    assert "set-cookie" not in headers
    assert "<h1" in body
    assert "orders" in body
    for path in re.findall(r'(?:src|href)="(?:/outbox)?(/static/[^"]+)"', body):
        status, headers, _ = ask(f"GET {path}")
        assert status == 200
        assert "immutable" in headers["cache-control"]


def test_odd_requests_are_answered_with_words(ask: Ask, session: str) -> None:
    lines = {
        "GET /no%2Fsuch": 404, "GET /%ff%fe": 404, "GET /%00": 404, "GET /static/%2e%2e/page.py": 404,
        "GET /?find=%00": 400, "PUT /": 405, "POST /acts": 415,
    }  # fmt: skip
    for line, status in lines.items():
        found, headers, body = ask(line, session, "Content-Length: 0")
        assert (found, 'role="alert"' in body) == (status, True), line
        assert headers["content-security-policy"].startswith("default-src 'none'")
    assert ask("POST /acts", session, FORM, "Content-Length: 3", body=b"a=\xff")[0] == 403
    assert ask("POST /acts", session, FORM, f"Content-Length: {2**33}")[0] == 413


def test_a_long_payload_is_downloaded(ask: Ask, session: str, rows: Rows) -> None:
    [id] = rows.insert(payload=b"0123456789abcde\n" * 600_000)
    _, headers, body = ask(f"GET /messages/{id}/payload", session)
    assert int(headers["content-length"]) == len(body) == 9_600_000
    assert body == "0123456789abcde\n" * 600_000
    _, headers, body = ask(f"HEAD /messages/{id}/payload", session)
    assert (headers["content-length"], body) == ("9600000", "")


def test_who_goes_away_amid_a_download_holds_nothing_up(settings: Settings, rows: Rows) -> None:
    [id] = rows.insert(payload=b"0123456789abcde\n" * 600_000)
    page = Page(settings, who=lambda environ: Person("anna", Role.ACT))
    with wsgi_serves(page.wsgi) as port:
        with socket.create_connection(("127.0.0.1", port), 30) as connection:
            connection.sendall(f"GET /messages/{id}/payload HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.0 200")
        assert asking(port, "")("GET /audit")[0] == 200
        loop = page.wsgi._loops.get()._loop
        assert eventually(lambda: not asyncio.all_tasks(loop))
    page.close()


@pytest.mark.filterwarnings("ignore:The .root_path. parameter is deprecated")
@pytest.mark.parametrize("stripped", [True, False])
def test_behind_a_proxy_with_a_prefix_each_page_is_found(settings: Settings, stripped: bool) -> None:
    app = FastAPI(root_path="/proxied")
    page = Page(settings)
    app.mount("/outbox", page.asgi)
    with uvicorn_serves(app) as port:
        before = "/outbox" if stripped else "/proxied/outbox"
        ask = asking(port, "")
        session = session_of(lambda line, *head, **more: ask(line.replace(" ", f" {before}", 1), *head, **more))
        for path in ("/", "/messages", "/errors"):
            status, _, body = ask(f"GET {before}{path}", session)
            assert status == 200
            assert 'href="/proxied/outbox/messages"' in body
    page.close()


def test_the_application_s_session_stays_its_own_and_an_asynchronous_hook_says_who_visits(settings: Settings) -> None:
    async def who(scope: dict[str, Any]) -> Person | None:
        await asyncio.sleep(0)
        name = scope["session"].get("user")
        return Person(name, Role.ACT) if name else None

    app = FastAPI()
    app.add_middleware(SessionMiddleware, secret_key="secret", session_cookie="shop")
    page = Page(settings, who=who)
    app.mount("/outbox", page.asgi)

    @app.get("/in")
    def sign_in(request: Request) -> None:
        request.session["user"] = "ida"

    with uvicorn_serves(app) as port:
        ask = asking(port, "")
        assert ask("GET /outbox/")[0] == 403
        cookie = f"Cookie: {ask('GET /in')[1]['set-cookie'].partition(';')[0]}"
        status, headers, body = ask("GET /outbox/", cookie)
        assert (status, "ida" in body, "Sign out" in body) == (200, True, False)
        assert "set-cookie" not in headers
    page.close()
