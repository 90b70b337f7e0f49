"""What the page costs when there is much, and what people cost who watch it.

- *page*: milliseconds of each page. *server* is the time in `Page.handle` with all read from the database, *HTTP* that
  of a request to `outbox-tasks web`, mostly for people who share a look, and *Chromium* that until the browser has
  loaded it. Medians; the slowest run, mostly the first, stands beside each.
- *watchers*: what people cost who keep the start page open, each in a tab that refreshes every two seconds.

The server is an embedded one with 1 GB of `shared_buffers`.
"""

from __future__ import annotations

import base64
import json
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click

from bench import busy, filled, fresh
from bench.relay import cpu_seconds
from bench.report import Figures, Say, bench
from outbox_tasks.database.connection import migrating
from outbox_tasks.local.commands import outbox_tasks_argv
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.local.servers import EmbeddedPostgres
from outbox_tasks.migrations import upgrade
from outbox_tasks.settings import Settings
from outbox_tasks.web import Page, Person, Role
from outbox_tasks.web.http import Request
from outbox_tasks.web.looks import Looks

SCHEMA, USER, PASSWORD = "filled", "anna", "only for this bench"
PORT = free_port()
"""Of the page."""
RUNS, WATCHERS, EVERY = 7, (0, 2, 10), 2.0
"""Runs of a page; people who watch; seconds after which their tabs refresh."""
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

PAGES = {
    "start": "/",
    "a destination": "/destinations/orders",
    "error groups": "/errors",
    "error groups of a destination": "/errors?destination=mails",
    "the largest error group": "/errors/{group}",
    "messages": "/messages",
    "messages, dead": "/messages?state=dead",
    "messages, retrying, of a destination": "/messages?state=retrying&destination=mails",
    "messages, sent, older than 3 days": "/messages?state=sent&older-than=3d",
    "messages, a rare type": "/messages?type=refund.made",
    "messages, no such type": "/messages?type=nothing.*",
    "messages, a key": "/messages?key=order:4",
    "a message, dead": "/messages/{dead}",
    "a message, pending": "/messages/{pending}",
    "a message, archived": "/messages/{archived}",
    "a message, to edit": "/messages/{dead}/edit",
    "keys": "/keys",
    "doctor": "/doctor",
    "workers": "/workers",
    "archive": "/archive",
    "audit": "/audit",
    "redrive the largest group, preview": "/acts/new?action=redrive&group={group}",
    "redrive all dead letters, preview": "/acts/new?action=redrive&state=dead",
}


@contextmanager
def full(say: Say, directory: Path | None, archived: int, pending: int) -> Iterator[tuple[Settings, int]]:
    """The settings of a full outbox, and the server's process. What a `directory` has is used again."""
    with EmbeddedPostgres(directory, settings={"shared_buffers": "1GB", "max_wal_size": "8GB"}) as server:
        places = {name: {"url": "redis+stream://localhost/0/x"} for name in filled.DESTINATIONS}
        users = {USER: {"password": PASSWORD, "role": "act"}}
        known = {"database_url": server.url, "database_schema": SCHEMA, "destinations": places}
        settings = Settings(**known, web_users=users)
        with migrating(settings) as connection:
            new = upgrade(connection, SCHEMA)
        if new:
            say("filling the tables")
            filled.archive(settings, archived)
            busy.bury(settings)
            filled.pend(settings, pending)
            busy.act(settings)
            filled.analyze(settings)
        with busy.now(settings):
            yield settings, server.pid


def paths(settings: Settings) -> dict[str, str]:
    """The path of each page, with the ids of messages."""

    def one(sql: str) -> str:
        return str(fresh.execute(settings, sql)[0][0])

    named = {
        "group": one("SELECT kin FROM {schema}.outbox_dead GROUP BY 1 ORDER BY count(*) DESC LIMIT 1"),
        "dead": one("SELECT id FROM {schema}.outbox_at_work WHERE place = 'dead' AND key IS NOT NULL LIMIT 1"),
        "pending": one("SELECT id FROM {schema}.outbox_at_work WHERE place = 'ready' OFFSET 1000 LIMIT 1"),
        "archived": one("SELECT id FROM {schema}.outbox_archive OFFSET 1000 LIMIT 1"),
    }
    return {name: path.format(**named) for name, path in PAGES.items()}


@contextmanager
def served(settings: Settings) -> Iterator[Child]:
    """`outbox-tasks web`, once it answers."""
    told = {name: one.url for name, one in settings.destinations.items()}
    env = {
        "OUTBOX_DATABASE_URL": str(settings.database_url),
        "OUTBOX_DATABASE_SCHEMA": SCHEMA,
        "OUTBOX_DESTINATIONS": json.dumps({name: {"url": url} for name, url in told.items()}),
        "OUTBOX_WEB_USERS": json.dumps({USER: {"password": PASSWORD, "role": "act"}}),
    }
    argv = outbox_tasks_argv("web", "--port", str(PORT))
    with TemporaryDirectory() as empty, Child.start("web", argv, env=env, cwd=Path(empty)) as web:
        deadline = time.monotonic() + 30
        while True:
            try:
                fetch(settings, "/")
            except OSError:
                if not web.alive or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
            else:
                break
        yield web


def address(path: str) -> str:
    return f"http://{LOOPBACK}:{PORT}{path}"


def fetch(settings: Settings, path: str) -> bytes:
    """The body of a page."""
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    request = urllib.request.Request(address(path), headers={"Authorization": f"Basic {login}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def handled(page: Page, path: str) -> float:
    """Milliseconds in `Page.handle` while no look is kept."""
    parts = urlsplit(path)
    request = Request("GET", parts.path, query=parse_qs(parts.query))
    page._own.get().looks = Looks()
    began = time.perf_counter()
    answer = page.handle(request)
    taken = time.perf_counter() - began
    assert answer.status == 200, (path, answer.status, answer.body)
    return taken * 1000


def timed(run: Callable[[], object]) -> float:
    """The milliseconds that it takes."""
    began = time.perf_counter()
    run()
    return (time.perf_counter() - began) * 1000


class Chromium:
    """A browser without a window that has the password."""

    def __init__(self, stack: ExitStack, settings: Settings) -> None:
        from playwright.sync_api import sync_playwright

        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        stack.callback(browser.close)
        self._settings = settings
        login: Any = {"username": USER, "password": PASSWORD, "send": "always"}
        self._page = browser.new_context(http_credentials=login).new_page()

    def loaded(self, path: str) -> float:
        """Milliseconds until the page has loaded, by the browser's clock."""
        self._page.goto(address(path), wait_until="load")
        script = "performance.getEntriesByType('navigation')[0].loadEventStart"
        return float(self._page.evaluate(script))


def measured(settings: Settings, page: Page, path: str, chromium: Chromium | None) -> dict[str, Any]:
    """How long a page takes."""
    found: dict[str, Any] = {}
    ways: dict[str, Callable[[], float]] = {
        "server": lambda: handled(page, path),
        "HTTP": lambda: timed(lambda: fetch(settings, path)),
    }
    if chromium is not None:
        ways["Chromium"] = lambda: chromium.loaded(path)
    for way, run in ways.items():
        taken = [run() for _ in range(RUNS)]
        found |= {f"{way}, ms": round(median(taken), 1), f"slowest {way}": round(max(taken), 1)}
    return {**found, "KB": round(len(fetch(settings, path)) / 1000, 1)}


def watched(settings: Settings, web: Child, postgres: int, watchers: int, seconds: float) -> dict[str, Any]:
    """What so many watchers of the start page cost in a second."""
    over = threading.Event()

    def watch(number: int) -> None:
        over.wait(EVERY * number / watchers)
        while not over.is_set():
            began = time.monotonic()
            fetch(settings, "/")
            over.wait(EVERY - (time.monotonic() - began))

    threads = [threading.Thread(target=watch, args=(n,)) for n in range(watchers)]
    for thread in threads:
        thread.start()
    time.sleep(EVERY)
    before = costs(settings, web.pid, postgres)
    began = time.monotonic()
    time.sleep(seconds)
    taken = time.monotonic() - began
    after = costs(settings, web.pid, postgres)
    over.set()
    for thread in threads:
        thread.join()
    page, server, transactions = ((now - then) / taken for now, then in zip(after, before, strict=True))
    return {
        "page, CPU ms/s": round(page * 1000, 1),
        "PostgreSQL, CPU ms/s": round(server * 1000, 1),
        "transactions/s": round(transactions, 1),
    }


def costs(settings: Settings, page: int, postgres: int) -> tuple[float, float, float]:
    """Seconds of CPU of the page's process and of PostgreSQL, and PostgreSQL's transactions, until now."""
    done = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    return cpu_seconds([page]), cpu_seconds([postgres]), float(fresh.execute(settings, done)[0][0])


@bench
@click.option("--archived", default=5_000_000, show_default=True, help="Rows of the archive.")
@click.option("--pending", default=1_000_000, show_default=True, help="Rows of the backlog.")
@click.option("--seconds", default=20.0, show_default=True, help="For which watchers watch.")
@click.option("--directory", type=click.Path(), help="Keep the full server here for the next run.")
def main(say: Say, archived: int, pending: int, seconds: float, directory: str | None) -> list[Figures]:
    """What the page costs."""
    pages: dict[str, dict[str, Any]] = {}
    watchers: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        settings, postgres = stack.enter_context(full(say, Path(directory) if directory else None, archived, pending))
        web = stack.enter_context(served(settings))
        for count in WATCHERS:
            say(f"{count} watchers")
            watchers[f"{count} watchers"] = watched(settings, web, postgres, count, seconds)
        chromium = None if CHROMIUM is None else Chromium(stack, settings)
        page = Page(settings, who=lambda host: Person(USER, Role.ACT))
        stack.callback(page.close)
        for name, path in paths(settings).items():
            say(name)
            pages[name] = measured(settings, page, path, chromium)
    note = f"{archived:,} archived, {pending:,} pending, {busy.DEAD:,} dead"
    return [Figures("page", pages, note), Figures("watchers", watchers)]
