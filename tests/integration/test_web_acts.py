"""Acts on the page: errors, the preview, the form, one act as it goes on; and whatever a hostile form may say."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID, uuid4

import httpx
import pytest

from outbox_tasks.model import Step, Verdict
from outbox_tasks.operating import limits
from outbox_tasks.operating.messages import acts as batches
from outbox_tasks.operating.messages.acts import Operator
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.messages.find import Filter, Lookup
from outbox_tasks.relay.store import Store
from outbox_tasks.web import Role
from outbox_tasks.web.pages import act
from tests.claims import take_batch
from tests.conftest import Rows, eventually, seconds_from_now
from tests.integration.acting import acted, acts, bury
from tests.integration.browsing import Browser, Visit, words


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is overloaded counts slowly."""
    monkeypatch.setattr(act, "PREVIEW_SECONDS", 60.0)
    monkeypatch.setattr(act, "END_SECONDS", 60.0)


@pytest.fixture
def browser(visit: Visit) -> Browser:
    return visit()


def form(html: str) -> dict[str, str]:
    """The fields of the form on a page, as a browser would send them."""
    fields = re.findall(r'<input[^>]* name="([^"]*)"(?:[^>]* value="([^"]*)")?', html)
    return {unescape(name): unescape(value) for name, value in fields if value}


def preview(browser: Browser, action: str = "redrive", **query: str) -> dict[str, str]:
    return form(browser.read("/acts/new", action=action, **query))


def entry_of(answer: httpx.Response) -> int:
    assert answer.status_code == 303, words(answer.text)
    return int(answer.headers["Location"].removeprefix("/acts/"))


def ended(browser: Browser, entry: int) -> str:
    """What the page of an act says once it has ended."""

    def over() -> str | None:
        shown = browser.text(f"/acts/{entry}")
        return None if "under way" in shown else shown

    return eventually(over)  # type: ignore[no-any-return]


def done(browser: Browser, fields: dict[str, str], **more: str) -> str:
    """What the page says when the act of a form has ended."""
    return ended(browser, entry_of(browser.post("/acts", **{"why": "so", **fields, **more})))


def group_of(store: Store) -> str:
    return str(Lookup(store).groups()[0][0]["group"])


def became(browser: Browser, entry: int) -> tuple[str, str]:
    """The colour of what an act's page says about its messages, and the words."""
    html = browser.read(f"/acts/{entry}").partition("What became of ")[2]
    found = re.search(r'<p class="banner (\w+)".*?</span> <span>(.*?)\.</span></p>', html, re.DOTALL)
    return (found[1], words(found[2]).lower()) if found else ("", "")


def settle_all(store: Store) -> None:
    """What waits is sent."""
    while (batch := take_batch(store)).messages:
        store.leases.settle(batch.token, "orders", [Verdict(message, Step.SENT) for message in batch.messages])


class TestErrors:
    def test_are_groups_with_their_numbers(self, browser: Browser, rows: Rows) -> None:
        bury(rows, 60)
        bury(rows, 2, destination="mails", last_error_code="timeout")
        shown = browser.text("/errors")
        assert re.search(r"[0-9a-f]{12} 60 \d+ \w+ ago \d+ \w+ ago orders order.created http_400 refused", shown)
        assert shown.index("http_400") < shown.index("timeout")
        assert "Redrive all of these" not in shown
        assert "No such dead letters." in browser.text("/errors", destination="nobody")
        for name, value in (("destination", "mails"), ("error", "timeout")):
            shown = browser.text("/errors", **{name: value})
            assert ("timeout" in shown, "http_400" in shown, "Redrive all of these" in shown) == (True, False, True)


class TestPreview:
    def test_says_how_many_of_which_kind(self, browser: Browser, rows: Rows) -> None:
        html = browser.read("/acts/new", action="redrive", destination="orders")
        assert ("There is nothing to redrive." in html, 'method="post"' in html) == (True, False)
        bury(rows, 3)
        [mail] = bury(rows, 1, destination="mails", event_type="mail.sent")
        shown = browser.text("/acts/new", action="redrive")
        assert "Redrive 4 messages?" in shown
        assert "orders order.created http_400 ✗ dead 3" in shown
        assert f"mails mail.sent http_400 ✗ dead 1 {mail}" in shown
        assert "'mails' is not configured here: its messages would be dead again in an hour." in shown
        assert "outbox-tasks redrive --all" in shown
        assert "is not configured" not in browser.text("/acts/new", action="discard", destination="mails")

    def test_of_named_messages(self, browser: Browser, rows: Rows) -> None:
        [dead], [waits], nobody = bury(rows), rows.insert(), str(uuid4())
        shown = words(browser.ask("GET", "/acts/new", {"action": "redrive", "id": [dead, waits, nobody]}).text)
        assert "Redrive 1 message?" in shown
        assert f"{waits} · pending It stays as it is." in shown
        assert f"{nobody} not there It stays as it is." in shown

    def test_counts_for_a_moment_only(self, browser: Browser, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batches, "ROWS_A_LOOK", 2)
        monkeypatch.setattr(act, "PREVIEW_SECONDS", 0.0)
        bury(rows, 5)
        html = browser.read("/acts/new", action="redrive")
        assert ("There may be more" in words(html), "total" in form(html)) == (True, False)

    def test_says_what_stands_in_the_way_and_the_first_page_who_changes_messages(
        self, browser: Browser, store: Store, rows: Rows
    ) -> None:
        bury(rows)
        limits.pause(store, "orders", "bob", "moving house")
        how: dict[str, Any] = {"who": "carl", "why": None, "token": uuid4(), "total": 1, "wake": False}
        entry = Runner(store).begin("redrive", Filter(states=("dead",), destination="orders"), **how)
        shown = browser.text("/acts/new", action="redrive")
        assert "These messages would wait: orders is paused by bob since" in shown
        start = browser.read("/")
        assert "carl is redriving 1 message of orders since " in words(start)
        assert f'action="/acts/{entry}/stop"' in start
        assert entry_of(browser.post(f"/acts/{entry}/stop")) == entry
        assert "carl is" not in browser.text("/")

    def test_refuses_what_it_can_not_mean(self, browser: Browser, rows: Rows) -> None:
        queries: list[dict[str, Any]] = [
            {"action": "purge"},
            {"action": "redrive", "chosen": "yes"},
            {"action": "redrive", "id": str(UUID(int=1)), "key": "k"},
            {"action": "redrive", "id": [str(uuid4()) for _ in range(101)]},
            {"action": "discard", "state": "leased"},
        ]
        assert [browser.ask("GET", "/acts/new", query).status_code for query in queries] == [400] * len(queries)


class TestBegin:
    def test_redrives_a_group_and_says_what_became_of_it(self, browser: Browser, store: Store, rows: Rows) -> None:
        """Nothing is green before all have been sent."""
        one, *_ = bury(rows, 3)
        bury(rows, 2, last_error_code="timeout")
        fields = preview(browser, group=group_of(store))
        entry = entry_of(browser.post("/acts", **fields, why="the shop is back"))
        shown = ended(browser, entry)
        assert "3 messages redriven." in shown
        assert "Who anna Why the shop is back" in shown
        assert f"group {fields['group']}" in shown
        [audited] = acts(rows)
        assert (audited.who, audited.why, audited.count) == ("anna", "the shop is back", 3)
        assert sum(row.status == "dead" for row in rows.hot()) == 2
        eventually(lambda: became(browser, entry) == ("note", "3 waiting"))
        rows.change([one], status="dead", dead_at=seconds_from_now(0), last_error_code="http_422")
        eventually(lambda: became(browser, entry) == ("bad", "2 waiting, 1 dead again (http_422)"))
        settle_all(store)
        acted(store, "redrive", [one], who="bob")
        eventually(lambda: became(browser, entry) == ("note", "2 sent, 1 waiting"))
        settle_all(store)
        eventually(lambda: became(browser, entry) == ("good", "3 sent"))
        assert "changed" not in browser.text(f"/acts/{entry}") + browser.text("/audit")

    def test_a_message_is_changed_at_once(self, browser: Browser, rows: Rows) -> None:
        [dead], [waits] = bury(rows), rows.insert(locked_until=seconds_from_now(600))
        entry = entry_of(browser.post("/acts", **preview(browser, id=dead), why="so"))
        assert rows.state(dead) == "pending"
        html = browser.read(f"/acts/{entry}")
        assert ("1 message redriven" in words(html), f"/messages/{dead}" in html) == (True, True)
        entry_of(browser.post("/acts", **preview(browser, "discard", id=waits), why="nobody wants it"))
        assert rows.state(waits) == "discarded"
        [retried] = rows.insert(attempts=2, last_error_code="http_429", locked_until=seconds_from_now(900))
        assert f"/acts/new?action=try&amp;id={retried}" in browser.read(f"/messages/{retried}")
        assert "1 message made due" in done(browser, preview(browser, "try", destination="orders"))

    def test_leaves_what_died_after_the_preview_whatever_the_form_says(self, browser: Browser, rows: Rows) -> None:
        bury(rows, 2)
        fields = preview(browser)
        later = [*bury(rows, dead_at=seconds_from_now(0)), *bury(rows, dead_at=seconds_from_now(600))]
        assert "2 messages redriven" in done(browser, fields)
        assert [rows.state(id) for id in later] == ["dead", "dead"]
        lie = {"total": "7", "until": "9999-12-31T00:00:00+00:00"}
        assert "1 message redriven" in done(browser, preview(browser), **lie)
        assert [rows.state(id) for id in later] == ["pending", "dead"]

    def test_a_form_begins_one_act_and_brings_back_what_was_asked(self, browser: Browser, rows: Rows) -> None:
        [id] = bury(rows, key="å&b=%\n+")
        fields = {**preview(browser, key="å&b=%\n+"), "why": "ü & so"}
        first = entry_of(browser.post("/acts", **fields))
        assert "Why ü & so" in ended(browser, first)
        rows.change([id], status="dead", dead_at=seconds_from_now(-30))
        assert entry_of(browser.post("/acts", **fields)) == first
        assert rows.state(id) == "dead"
        refused = browser.post("/acts", **{**fields, "key": "other"})
        assert (refused.status_code, f"act {first}" in words(refused.text)) == (409, True)

    def test_refuses_a_bad_form_and_keeps_what_was_written(self, browser: Browser, rows: Rows) -> None:
        [id] = bury(rows)
        refused: list[tuple[dict[str, str], str]] = [
            ({"why": "  "}, "Say why"),
            ({"why": "x" * 501}, "Say why"),
            ({"rate": "nan"}, "rate: Input should be a finite number"),
            ({"limit": "0"}, "limit: Input should be greater"),
            ({"limit": "9" * 5000}, "limit: "),
            ({"token": "%"}, "token: "),
            ({"until": "2026-11-22"}, "until: "),
            ({"total": "-5"}, "total: "),
        ]
        fields = {**preview(browser), "why": "because", "rate": "5"}
        for changed, answered in refused:
            answer = browser.post("/acts", **{**fields, **changed})
            assert (answer.status_code, answered in words(answer.text)) == (400, True), changed
            again = form(answer.text)
            kept = [name for name in ("why", "rate") if name not in changed]
            assert [again[name] for name in kept] == [fields[name] for name in kept]
        for forged in ({"action": "purge"}, {"action": "redrive", "state": "sent"}, {"id": "x"}):
            assert browser.post("/acts", **{**fields, **forged}).status_code == 400
        assert (rows.state(id), acts(rows)) == ("dead", [])


class TestAct:
    def test_shows_how_far_it_is_and_is_stopped(self, browser: Browser, rows: Rows, store: Store) -> None:
        bury(rows, 40)
        browser.read("/errors")  # the next look at it shows the act
        limits = {"why": "slowly", "rate": "4", "limit": "39"}
        entry = entry_of(browser.post("/acts", **preview(browser, group=group_of(store), **limits)))
        html = eventually(lambda: (page := browser.read(f"/acts/{entry}")) and 'value="0"' not in page and page)
        assert re.search(r'<progress max="39" value="\d+"', html)
        assert "at most 39, 4 a second" in words(html)
        assert f"/acts/{entry}" in browser.read("/errors")
        assert entry_of(browser.post(f"/acts/{entry}/stop")) == entry
        [audited] = acts(rows)
        assert 0 < audited.count < 40
        shown = browser.text(f"/acts/{entry}")
        assert (f"{audited.count} message" in shown, "stopped by anna" in shown) == (True, True)

    def test_of_another_kind_is_shown_too(self, browser: Browser, store: Store, rows: Rows) -> None:
        [id] = bury(rows)
        entry = Operator(store, "bob", "typo").edit(UUID(id), b"{}", b"[1]", "application/json")
        shown = browser.text(f"/acts/{entry}")
        assert f"No. {entry}: edit" in shown
        assert "e30" not in shown  # the former payload

    def test_that_is_not_there(self, browser: Browser, rows: Rows) -> None:
        for entry in ("99", "-1", "1" * 30, "٣", "1 OR 1=1"):
            assert browser.get(f"/acts/{entry}").status_code == 404
            assert browser.post(f"/acts/{entry}/stop").status_code == 404


def test_who_may_not_act_is_offered_nothing_and_changes_nothing(visit: Visit, store: Store, rows: Rows) -> None:
    """On a read-only page it is nobody."""
    [id] = bury(rows, key="k")
    rows.insert(key="k")
    fields = {**preview(visit()), "why": "so"}
    how: dict[str, Any] = {"who": "carl", "why": None, "token": uuid4(), "total": 1, "wake": False}
    entry = Runner(store).begin("redrive", Filter(states=("dead",), destination="mails"), **how)
    of_one = (f"/messages/{id}", f"/acts/{entry}", "/destinations/orders", "/errors?error=http_400")
    shown = ("/", "/keys", "/messages", *of_one)
    for path in shown:
        assert re.search('/acts/new|method="post"', inside(visit(), path)), path
    for browser in (visit(Role.LOOK), visit(Role.PAYLOAD), visit(read_only=True)):
        for path in shown:
            assert not re.search('/acts/new|method="post"|name="id"', inside(browser, path)), path
        assert browser.get("/acts/new", action="redrive").status_code == 403
        for path in ("/acts", f"/acts/{entry}/stop", "/destinations/orders/pause", "/destinations/orders/limit"):
            assert browser.post(path, **fields, rate_limit="9").status_code == 403
    assert browser.page._shared.get().acts._thread is None, "nor does a read-only page go on with acts"
    assert visit().ask("POST", "/acts", data=fields).status_code == 403, "of another site"
    assert ([act.action for act in acts(rows)], rows.state(id)) == (["redrive"], "dead")


def inside(browser: Browser, path: str) -> str:
    """What is on a page between its navigation and its end."""
    path, _, query = path.partition("?")
    return browser.read(path, **dict(parse_qsl(query))).partition("<main")[2]
