"""People look at the page in a real browser, and act on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, BrowserContext, Page, expect
from pytest_celery import CeleryTestSetup, CeleryWorkerCluster
from sqlalchemy import func

from lab.proxy import Proxy, through
from outbox_tasks.local.ports import LOOPBACK, free_port
from outbox_tasks.local.processes import Child
from outbox_tasks.local.relay import CELERY, WEB_READY, web_argv, web_env
from tests.acceptance.nodes import Relay
from tests.conftest import Rows, Stream, eventually

NAME, PASSWORD = "anna", "a long password"
PATIENCE = 60_000.0
"""Milliseconds, for machines that are overloaded."""

WIDE, NARROW = (1400, "light"), (320, "dark")
"""Widths and colours of a window."""

SEEN = ("color-contrast", "link-in-text-block", "scrollable-region-focusable", "target-size")
"""The rules of axe that depend on these; on a wide window all that there is can be seen."""

LOOKS = {WIDE: "", NARROW: f", runOnly: {list(SEEN)}"}

BAD = ("serious", "critical")

Open = Callable[..., Page]
"""Opens a page in a new tab."""

expect.set_options(timeout=PATIENCE)


@pytest.fixture(scope="module")
def celery_worker_cluster(relay: Relay) -> CeleryWorkerCluster:
    relay.beat()
    worker = relay.worker([*CELERY, "worker", "-l", "INFO", "-P", "solo"])
    relay.ready()
    return CeleryWorkerCluster(worker)


@pytest.fixture(scope="module")
def database(postgres_url: str) -> Iterator[Proxy]:
    """Between the page and the database."""
    with Proxy(urlsplit(postgres_url).port or 5432) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def site(relay: Relay, database: Proxy) -> Iterator[str]:
    """The address of the page."""
    port = free_port()
    settings = relay.env(database_url=through(str(relay.settings.database_url), database))
    with Child.start("web", web_argv(port), env={**settings, **web_env(PASSWORD, NAME)}) as web:
        web.wait_for(WEB_READY, 60)
        yield f"http://{LOOPBACK}:{port}"


@pytest.fixture(scope="module")
def window(chromium: Browser, site: str) -> BrowserContext:
    """Of somebody who has signed in. Its first page stays: with the last one it would close, and a new window costs
    the browser as much as all the pages of a test."""
    return new_window(chromium, site)


def new_window(chromium: Browser, site: str, **options: Any) -> BrowserContext:
    made = chromium.new_context(base_url=site, **options)
    page = made.new_page()
    page.goto("/audit")
    page.get_by_label("Name").fill(NAME)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="Audit")).to_be_visible()
    return made


@pytest.fixture
def open_page(window: BrowserContext, site: str, celery_setup: CeleryTestSetup) -> Iterator[Open]:
    """Opens pages, by themselves in a tab. No page may ask for anything from elsewhere, or for what its own policy
    forbids."""
    opened: list[Page] = []
    faults: list[str] = []

    def note(message: Any) -> None:
        # The browser notes each status of trouble, too.
        if message.type in ("error", "warning") and "the server responded with a status of" not in message.text:
            faults.append(message.text)

    def make(path: str = "/", where: BrowserContext = window) -> Page:
        page = where.new_page()
        opened.append(page)
        page.set_default_timeout(PATIENCE)
        page.on("console", note)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: faults.append(request.url) if not ours(request.url) else None)
        page.goto(path)
        return page

    def ours(url: str) -> bool:
        return url.startswith((f"{site}/", "data:"))

    yield make
    for page in opened:
        page.close()
    assert faults == []


def die(rows: Rows, event_type: str, count: int = 1, **columns: Any) -> list[str]:
    """Dead letters of one error group."""
    died = {"status": "dead", "dead_at": func.clock_timestamp(), "attempts": 3}
    error = {"last_error_code": "http_422", "last_error": "no such customer"}
    return rows.insert(count, event_type=event_type, **died, **error, **columns)


def test_a_group_of_dead_letters_is_redriven_and_delivered(open_page: Open, rows: Rows, stream: Stream) -> None:
    """From the start page to the audit, and what happens meanwhile is seen without a click."""
    ids = die(rows, "order.toured", 3)
    page = open_page()
    page.get_by_role("link", name="dead letters wait").click()
    page.get_by_role("row", name="order.toured").get_by_role("link").first.click()
    expect(page.get_by_text("no such customer").first).to_be_visible()
    watcher = open_page(f"/messages/{ids[0]}")
    expect(watcher.locator(".badge", has_text="dead").first).to_be_visible()

    page.get_by_role("link", name="Redrive").click()
    expect(page.get_by_role("heading", name="Redrive 3 messages?")).to_be_visible()
    page.get_by_role("button", name="Redrive").click()
    assert page.url.partition("?")[0].endswith("/acts/new"), "a reason must be given"
    page.get_by_label("Why").fill("the customer exists now")
    page.get_by_role("button", name="Redrive").click()
    expect(page.get_by_text("3 messages redriven")).to_be_visible()
    expect(watcher.locator(".badge", has_text="sent")).to_be_visible()
    eventually(lambda: set(ids) <= set(stream.ids()))

    page.get_by_role("link", name="The audit").click()
    done = page.get_by_role("row", name="the customer exists now")
    expect(done.get_by_role("cell", name=NAME)).to_be_visible()
    expect(done.get_by_text("3 messages")).to_be_visible()


def test_nobody_is_shut_out_of_any_page(open_page: Open, rows: Rows) -> None:
    """In light and dark, on wide and narrow windows, axe finds no serious fault, and nothing scrolls sideways. Among
    the pages is that of an act that goes on, until somebody stops it."""
    ids = die(rows, "order.held", 5, key="a customer")
    rows.insert(1, event_type="order.held", key="a customer")
    page = open_page("/errors")
    page.get_by_role("row", name="order.held").get_by_role("link").first.click()
    redrive = page.get_by_role("link", name="Redrive")
    expect(redrive).to_be_visible()
    group = page.url
    redrive.click()
    page.get_by_label("Why").fill("slowly")
    page.get_by_label("Messages a second").fill("0.01")
    preview = page.url
    page.get_by_role("button", name="Redrive").click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    act = page.url
    plain = ("/", "/errors", "/messages", "/keys", "/workers", "/audit", "/doctor")
    message = f"/messages/{ids[0]}"
    found = ("/search?q=nothing", "/search?q=a+customer")
    for path in (*plain, *found, "/destinations/orders", "/nowhere", group, preview, act, message):
        page.goto(path)
        page.evaluate(AXE_SCRIPT)
        for (width, scheme), rules in LOOKS.items():
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=scheme)
            assert (path, width, scheme, serious(page, rules)) == (path, width, scheme, [])
            sideways = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
            assert (path, width, page.evaluate(sideways)) == (path, width, False)
    page.goto(act)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text(f"stopped by {NAME}")).to_be_visible()


def axed(page: Page) -> Page:
    page.evaluate(AXE_SCRIPT)
    return page


def serious(page: Page, rules: str) -> list[str]:
    """The faults that shut people out, as axe finds them."""
    found = page.evaluate(f"axe.run({{resultTypes: ['violations']{rules}}})")["violations"]
    return [f"{one['id']}: {node['html']}" for one in found if one["impact"] in BAD for node in one["nodes"]]


def test_who_has_signed_out_sees_nothing_more_and_signs_in_where_they_were(
    open_page: Open, chromium: Browser, site: str
) -> None:
    """And without JavaScript pages can be read."""
    plain = open_page("/messages", new_window(chromium, site, java_script_enabled=False))
    plain.get_by_role("link", name="Errors").click()
    expect(plain.get_by_role("heading", name="Errors")).to_be_visible()
    window = new_window(chromium, site)
    watcher, page = open_page("/errors", window), open_page("/", window)
    page.get_by_role("button", name="Sign out").click()
    for tab in (page, watcher):
        expect(tab.get_by_role("heading", name="Sign in")).to_be_visible()
    assert serious(axed(page), "") == []
    watcher.get_by_label("Name").fill(NAME)
    watcher.get_by_label("Password").fill(PASSWORD)
    watcher.get_by_role("button", name="Sign in").click()
    expect(watcher.get_by_role("heading", name="Errors")).to_be_visible()


def test_the_database_may_go_and_come_back(open_page: Open, database: Proxy) -> None:
    page, other = open_page(), open_page("/destinations/orders")
    database.refuses = True
    database.reset()
    try:
        expect(page.get_by_role("article").filter(has_text="database")).to_be_visible()
        expect(other.get_by_role("alert").filter(has_text="database")).to_be_visible()
    finally:
        database.refuses = False
    expect(page.get_by_role("heading", name="Destinations")).to_be_visible()
    expect(other.get_by_role("heading", name="The last hour")).to_be_visible()


def test_what_somebody_writes_and_opens_survives_the_refresh(open_page: Open, rows: Rows) -> None:
    page = open_page("/destinations/orders")
    page.locator("#act summary").click()
    page.locator("#act").get_by_label("Why").last.fill("they move house")
    page.get_by_role("heading", level=1).click()  # nobody writes any more: the page refreshes
    die(rows, "order.meanwhile", 2)
    expect(page.get_by_role("article").filter(has_text="dead letter").first).to_be_visible()
    expect(page.get_by_role("link", name="Redrive its dead letters")).to_be_visible()
    expect(page.locator("#act").get_by_label("Why").last).to_have_value("they move house")


def test_all_messages_are_chosen_at_once_and_the_keyboard_is_enough(open_page: Open, rows: Rows) -> None:
    die(rows, "order.chosen", 3)
    page = open_page("/messages?type=order.chosen")
    page.get_by_label("All on this page").check()
    boxes = page.locator("input[form=chosen]")
    expect(boxes).to_have_count(3)
    assert all(box.is_checked() for box in boxes.all())
    page = open_page("/messages")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_focused()
