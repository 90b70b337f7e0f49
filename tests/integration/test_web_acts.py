"""Acts on the page: errors, the preview, the form, one act as it goes on; and whatever a hostile form may say."""

from __future__ import annotations

import re
from html import unescape
from itertools import product
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID, uuid4

import httpx
import pytest
from sqlalchemy import text

from outbox_tasks.model import Step, Verdict
from outbox_tasks.operating import pauses
from outbox_tasks.operating.messages import acts as batches
from outbox_tasks.operating.messages.acts import Operator
from outbox_tasks.operating.messages.background import Runner
from outbox_tasks.operating.messages.find import Filter, Lookup
from outbox_tasks.relay.store import Store
from outbox_tasks.web import Role
from outbox_tasks.web.pages import act
from tests.claims import take_batch
from tests.conftest import Rows, eventually, seconds_from_now
from tests.integration.acting import acted
from tests.integration.browsing import Browser, Visit, words
from tests.integration.test_redrive import acts, bury


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
    place = answer.headers["Location"]
    return int(place.removeprefix("/acts/"))


def told(answer: httpx.Response) -> str:
    return words(answer.text)


def ended(browser: Browser, entry: int) -> str:
    """What the page of an act says once it has ended."""

    def over() -> str | None:
        shown = browser.text(f"/acts/{entry}")
        return None if "under way" in shown else shown

    return eventually(over)  # type: ignore[no-any-return]


def group_of(store: Store) -> str:
    return str(Lookup(store).groups()[0][0]["group"])


def at(browser: Browser, address: str) -> str:
    """The page that a link or a form leads to."""
    path, _, query = address.partition("?")
    return browser.ask("GET", path, parse_qs(query)).text


def became(browser: Browser, entry: int) -> tuple[str, str]:
    """The colour of what an act's page says about its messages, and the words."""
    html = browser.read(f"/acts/{entry}").partition("What became of ")[2]
    found = re.search(r'<p class="banner (\w+)".*?</span> <span>(.*?)\.</span></p>', html, re.DOTALL)
    return (found[1], words(found[2]).lower()) if found else ("", "")


def settle_all(store: Store, rows: Rows) -> None:
    """What waits is sent."""
    while (batch := take_batch(store)).messages:
        store.settle(batch.token, "orders", [Verdict(message, Step.SENT) for message in batch.messages])


class TestErrors:
    def test_are_groups_with_their_numbers(self, browser: Browser, rows: Rows) -> None:
        bury(rows, 12)
        bury(rows, 2, destination="mails", last_error_code="timeout")
        shown = browser.text("/errors")
        assert re.search(r"orders http_400 12 \d+ (s|min) ago \d+ (s|min) ago order.created http_400", shown)
        assert shown.index("http_400 refused: no such order 42") < shown.index("timeout")
        assert "timeout" in browser.text("/errors", destination="mails")
        assert "http_400" not in browser.text("/errors", destination="mails")

    def test_many_texts_of_one_code_are_one_row(self, browser: Browser, rows: Rows) -> None:
        """274 groups were seen for five codes: texts that name customers differ, and so do event types."""
        for place in range(60):
            customer = "cus_" + "".join(chr(ord("g") + place // 15**n % 15) for n in range(3))
            bury(rows, last_error=f"{customer} is unknown", event_type=f"order.{place % 6}")
        bury(rows, 2, last_error_code="timeout")
        shown = browser.read("/errors")
        assert shown.count("<tr>") == 1 + 2
        assert re.search(r"orders http_400 60 .* and 3 more .* and 59 more texts", words(shown))
        [link] = re.findall(r'href="(/errors\?[^"]*http_400)"', shown)
        first = at(browser, unescape(link))
        assert (first.count("<tr>"), "Redrive all of these" in first) == (1 + 50, True)
        assert "timeout" in browser.text("/errors", error="timeout")
        assert "http_400" not in browser.text("/errors", error="timeout")

    def test_without_dead_letters(self, browser: Browser, rows: Rows) -> None:
        assert "No dead letters." in browser.text("/errors")
        assert "This group has no dead letters now." in browser.text("/errors/0123456789ab")
        assert "This group has no dead letters now." in browser.text("/errors/000000000000")

    def test_one_group(self, browser: Browser, store: Store, rows: Rows) -> None:
        ids = bury(rows, 25)
        bury(rows, 1, last_error_code="timeout")
        html = browser.read(f"/errors/{group_of(store)}")
        assert "Dead letters 25" in words(html)
        assert "timeout" not in words(html)
        assert sum(f"/messages/{id}" in html for id in ids) == 20
        assert f"outbox-tasks redrive --group {group_of(store)}" in html
        assert f"/acts/new?action=redrive&amp;group={group_of(store)}" in html


class TestPreview:
    def test_says_how_many_of_which_kind(self, browser: Browser, rows: Rows) -> None:
        bury(rows, 3)
        [mail] = bury(rows, 1, destination="mails", event_type="mail.sent")
        shown = browser.text("/acts/new", action="redrive")
        assert "Redrive 4 messages?" in shown
        assert "orders order.created http_400 ✗ dead 3" in shown
        assert f"mails mail.sent http_400 ✗ dead 1 {mail}" in shown
        assert "'mails' is not configured here: its messages would be dead again in an hour." in shown
        assert "outbox-tasks redrive --all" in shown
        shown = browser.text("/acts/new", action="discard", destination="mails")
        assert "Discard 1 message?" in shown
        assert "is not configured" not in shown
        assert rows.state(mail) == "dead"

    def test_of_nothing_has_no_form(self, browser: Browser, rows: Rows) -> None:
        html = browser.read("/acts/new", action="redrive", destination="orders")
        assert "There is nothing to redrive." in html
        assert 'method="post"' not in html

    def test_of_named_messages(self, visit: Visit, rows: Rows) -> None:
        [dead], [waits], nobody = bury(rows), rows.insert(), str(uuid4())
        browser = visit()
        html = browser.ask("GET", "/acts/new", {"action": "redrive", "id": [dead, waits, nobody]}).text
        shown = words(html)
        assert "Redrive 1 message?" in shown
        assert f"{waits} · pending It stays as it is." in shown
        assert f"{nobody} not there It stays as it is." in shown

    def test_counts_for_a_moment_only(self, browser: Browser, rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(batches, "ROWS_A_LOOK", 2)
        monkeypatch.setattr(act, "PREVIEW_SECONDS", 0.0)
        bury(rows, 5)
        html = browser.read("/acts/new", action="redrive")
        assert "There may be more" in words(html)
        assert "total" not in form(html)

    def test_says_what_stands_in_the_way_and_the_first_page_who_changes_messages(
        self, browser: Browser, store: Store, rows: Rows
    ) -> None:
        [dead] = bury(rows)
        pauses.pause(store, "orders", "bob", "moving house")
        how: dict[str, Any] = {"who": "carl", "why": None, "token": uuid4(), "total": 1, "wake": False}
        runner = Runner(store)
        entry = runner.begin("redrive", Filter(states=("dead",), destination="orders"), **how)
        runner._take()  # and it does nothing
        for query in ({"destination": "orders"}, {"id": dead}, {}):
            shown = browser.text("/acts/new", action="redrive", **query)
            assert "These messages would wait: orders is paused by bob since" in shown
        start = browser.read("/")
        assert "carl is redriving 1 message of orders since " in words(start)
        assert f'action="/acts/{entry}/stop"' in start
        assert entry_of(browser.post(f"/acts/{entry}/stop")) == entry
        assert "carl is" not in browser.text("/")

    def test_refuses_what_it_can_not_mean(self, browser: Browser, rows: Rows) -> None:
        queries: list[dict[str, str]] = [
            {},
            {"action": "purge"},
            {"action": "drop table"},
            {"action": "redrive", "chosen": "yes"},
            {"action": "redrive", "id": "1 OR 1=1"},
            {"action": "redrive", "id": str(UUID(int=1)), "key": "k"},
            {"action": "redrive", "state": "pending"},
            {"action": "discard", "state": "leased"},
            {"action": "redrive", "state": "nonsense"},
            {"action": "redrive", "older-than": "99999999999d"},
            {"action": "redrive", "older-than": "-1s"},
            {"action": "redrive", "key": "x" * 501},
            {"action": "redrive", "key": "a\0b"},
            {"action": "redrive", "group": "0123456789ab", "state": "sent"},
        ]
        assert [browser.get("/acts/new", **query).status_code for query in queries] == [400] * len(queries)
        ids = [str(uuid4()) for _ in range(101)]
        assert browser.ask("GET", "/acts/new", {"action": "redrive", "id": ids}).status_code == 400


class TestBegin:
    def test_redrives_a_group(self, browser: Browser, store: Store, rows: Rows) -> None:
        bury(rows, 30)
        bury(rows, 2, last_error_code="timeout")
        fields = preview(browser, group=group_of(store))
        entry = entry_of(browser.post("/acts", **fields, why="the shop is back"))
        shown = ended(browser, entry)
        assert "30 messages redriven" in shown
        assert "Who anna" in shown
        assert "Why the shop is back" in shown
        assert f"redrive --group {fields['group']} --why 'the shop is back'" in shown
        [done] = acts(rows)
        assert (done.who, done.why, done.count) == ("anna", "the shop is back", 30)
        assert sum(row.status == "dead" for row in rows.hot()) == 2

    def test_a_message_is_changed_at_once(self, browser: Browser, rows: Rows) -> None:
        [id] = bury(rows)
        entry = entry_of(browser.post("/acts", **preview(browser, id=id), why="so"))
        assert rows.state(id) == "pending"
        html = browser.read(f"/acts/{entry}")
        assert "1 message redriven" in words(html)
        assert f"/messages/{id}" in html
        assert f"outbox-tasks redrive {id} --why so" in html

    def test_discards_a_message_that_waits(self, browser: Browser, rows: Rows) -> None:
        [id] = rows.insert(locked_until=seconds_from_now(600))
        entry_of(browser.post("/acts", **preview(browser, "discard", id=id), why="nobody wants it"))
        assert rows.state(id) == "discarded"

    def test_leaves_what_died_after_the_preview(self, browser: Browser, rows: Rows) -> None:
        bury(rows, 2)
        fields = preview(browser)
        [later] = bury(rows, dead_at=seconds_from_now(0))
        assert "2 messages redriven" in ended(browser, entry_of(browser.post("/acts", **fields, why="so")))
        assert rows.state(later) == "dead"

    def test_a_form_that_is_sent_twice_begins_one_act(self, browser: Browser, rows: Rows) -> None:
        [id] = bury(rows)
        fields = {**preview(browser), "why": "so"}
        first = entry_of(browser.post("/acts", **fields))
        ended(browser, first)
        rows.change([id], status="dead", dead_at=seconds_from_now(-30))
        assert entry_of(browser.post("/acts", **fields)) == first
        assert [done.count for done in acts(rows)] == [1]
        assert rows.state(id) == "dead"

    def test_says_what_became_of_the_messages(self, browser: Browser, rows: Rows, store: Store) -> None:
        """Nothing is green before all have been sent."""
        one, *_ = bury(rows, 3)
        entry = entry_of(browser.post("/acts", **preview(browser), why="so"))
        ended(browser, entry)
        eventually(lambda: became(browser, entry) == ("note", "3 waiting"))
        rows.change([one], status="dead", dead_at=seconds_from_now(0), last_error_code="http_422")
        eventually(lambda: became(browser, entry) == ("bad", "2 waiting, 1 dead again (http_422)"))
        acted(store, "discard", [one], who="bob")
        settle_all(store, rows)
        eventually(lambda: became(browser, entry) == ("note", "2 sent, 1 discarded"))
        assert "changed" not in browser.text(f"/acts/{entry}")
        assert "changed" not in browser.text("/audit")

    def test_all_sent_is_green(self, browser: Browser, rows: Rows, store: Store) -> None:
        bury(rows, 3)
        entry = entry_of(browser.post("/acts", **preview(browser), why="so"))
        ended(browser, entry)
        settle_all(store, rows)
        eventually(lambda: became(browser, entry) == ("good", "3 sent"))

    def test_one_is_tried_first(self, browser: Browser, rows: Rows) -> None:
        ids = bury(rows, 3)
        assert "Try one first" in browser.text("/acts/new", action="redrive")
        assert "Try one first" not in browser.text("/acts/new", action="redrive", id=ids[0])
        assert "Try one first" not in browser.text("/acts/new", action="discard")
        answer = browser.post("/acts", **preview(browser, destination="orders"), why="so", first="yes")
        place = answer.headers["Location"]
        html = at(browser, place)
        assert "1 message redriven" in words(html)
        assert len([row for row in rows.hot() if row.status == "dead"]) == 2
        [rest] = re.findall(r'href="([^"]*)">Redrive the rest', html)
        shown = words(at(browser, unescape(rest)))
        assert "Redrive 2 messages?" in shown
        assert "destination orders" in shown

    def test_one_of_named_messages_is_tried_first(self, browser: Browser, rows: Rows) -> None:
        one, two, three = bury(rows, 3)
        fields = preview(browser, id=one)
        body = {**{name: [value] for name, value in fields.items()}, "id": [one, two, three]}
        answer = browser.post("/acts", **body, why="so", first="yes")
        place = answer.headers["Location"]
        assert [rows.state(id) for id in (one, two, three)] == ["pending", "dead", "dead"]
        assert place.endswith(f"?action=redrive&id={two}&id={three}")

    def test_says_what_somebody_else_was_faster_with(self, browser: Browser, rows: Rows, store: Store) -> None:
        first, second, third = bury(rows, 3)
        fields = preview(browser)
        acted(store, "redrive", [first], who="bob")
        schema = rows.tables.messages.schema
        with rows.engine.connect() as other, other.begin():
            other.execute(
                text(
                    f"SELECT FROM {schema}.outbox_dead d JOIN {schema}.outbox_messages m USING (seq) "
                    f"WHERE m.id = '{second}' FOR UPDATE OF d"
                )
            )
            shown = ended(browser, entry_of(browser.post("/acts", **fields, why="so")))
        assert "1 message redriven" in shown
        assert "1 message was not redriven: somebody else had changed it, or it was on the way." in shown
        assert [rows.state(id) for id in (first, second, third)] == ["pending", "dead", "pending"]

    def test_refuses_a_bad_form_and_keeps_what_was_written(self, browser: Browser, rows: Rows) -> None:
        [id] = bury(rows)
        refused: list[tuple[dict[str, str], str]] = [
            ({"why": ""}, "Say why"),
            ({"why": "  "}, "Say why"),
            ({"why": "x" * 501}, "Say why"),
            ({"rate": "fast"}, "the rate is a number"),
            ({"rate": "0"}, "the rate is a number from"),
            ({"rate": "-1"}, "the rate is a number from"),
            ({"rate": "nan"}, "the rate is a number from"),
            ({"rate": "1e999"}, "the rate is a number from"),
            ({"limit": "0"}, "the limit is a whole number"),
            ({"limit": "1.5"}, "the limit is a whole number"),
            ({"limit": "1e400"}, "the limit is a whole number"),
            ({"limit": "9" * 5000}, "the limit is a whole number"),
            ({"limit": "'; DROP TABLE x"}, "the limit is a number"),
            ({"token": ""}, "the form is not whole"),
            ({"token": "%"}, "the form is not whole"),
            ({"until": "yesterday"}, "the form is not whole"),
            ({"until": "2026-11-22"}, "the form is not whole"),
        ]
        fields = {**preview(browser), "why": "because", "rate": "5"}
        for changed, said in refused:
            answer = browser.post("/acts", **{**fields, **changed})
            assert (answer.status_code, said in told(answer)) == (400, True), changed
            again = form(answer.text)
            assert {name: again[name] for name in ("why", "rate") if name not in changed} == {
                name: fields[name] for name in ("why", "rate") if name not in changed
            }
        assert (rows.state(id), acts(rows)) == ("dead", [])

    def test_a_form_that_lies_harms_only_its_own_display(self, browser: Browser, rows: Rows) -> None:
        [later] = bury(rows, dead_at=seconds_from_now(600))
        for changed in ({"total": "-5"}, {"total": "1e30"}, {"until": "9999-12-31T00:00:00+00:00"}):
            bury(rows, 2)
            shown = ended(browser, entry_of(browser.post("/acts", **{**preview(browser), "why": "so", **changed})))
            assert "2 messages redriven" in shown
        assert rows.state(later) == "dead"

    def test_refuses_a_forged_choice(self, browser: Browser, rows: Rows) -> None:
        bury(rows)
        for fields in ({"action": "purge"}, {"action": "redrive", "state": "sent"}, {"id": "x"}):
            assert browser.post("/acts", **{**preview(browser), "why": "so", **fields}).status_code == 400
        assert acts(rows) == []

    def test_is_for_those_who_may_act(self, visit: Visit, store: Store, rows: Rows) -> None:
        bury(rows)
        fields = {**preview(visit()), "why": "so"}
        for browser in (visit(Role.LOOK), visit(Role.PAYLOAD), visit(read_only=True)):
            assert "/acts/new" not in browser.read(f"/errors/{group_of(store)}")
            assert browser.get("/acts/new", action="redrive").status_code == 403
            assert browser.post("/acts", **fields).status_code == 403
        assert visit().post("/acts", **{**fields, "csrf": "x" * 43}).status_code == 403
        assert acts(rows) == []


def test_a_form_brings_back_what_the_preview_was_asked(browser: Browser, rows: Rows) -> None:
    [id] = bury(rows, key="å&b=%\n+")
    fields = {**preview(browser, key="å&b=%\n+"), "why": "ü & so"}
    first, again = (entry_of(browser.post("/acts", **fields)) for _ in range(2))
    assert first == again
    assert "Why ü & so" in ended(browser, first)
    assert rows.state(id) == "pending"
    assert [done.count for done in acts(rows)] == [1]


class TestAct:
    def test_shows_how_far_it_is_and_is_stopped(self, visit: Visit, rows: Rows, store: Store) -> None:
        bury(rows, 40)
        browser, group = visit(), group_of(store)
        entry = entry_of(browser.post("/acts", **preview(browser, group=group), why="slowly", rate="4"))
        html = eventually(lambda: (page := browser.read(f"/acts/{entry}")) and 'value="0"' not in page and page)
        assert re.search(r'<progress max="40" value="\d+"', html)
        assert "Rate 4 a second" in words(html)
        assert f"--group {group} --rate 4 --why slowly" in words(html)
        assert f"/acts/{entry}" in browser.read("/errors")
        looker = visit(Role.LOOK)
        assert "Stop" not in looker.text(f"/acts/{entry}")
        assert looker.post(f"/acts/{entry}/stop").status_code == 403
        assert visit(read_only=True).post(f"/acts/{entry}/stop").status_code == 403
        assert entry_of(browser.post(f"/acts/{entry}/stop")) == entry
        shown = browser.text(f"/acts/{entry}")
        [done] = acts(rows)
        assert 0 < done.count < 40
        assert f"anna stopped it after {done.count} message" in shown
        assert entry_of(browser.post(f"/acts/{entry}/stop")) == entry

    def test_of_the_command_line_is_shown_from_the_audit(self, browser: Browser, store: Store, rows: Rows) -> None:
        ids = [UUID(id) for id in bury(rows, 3)]
        done = acted(store, "discard", ids, who="bob", why="by hand")
        shown = browser.text(f"/acts/{done.entry}")
        assert "3 messages discarded" in shown
        assert "3 messages, by their ids" in shown

    def test_keeps_its_rate_and_limit_in_the_command_when_it_has_ended(self, browser: Browser, rows: Rows) -> None:
        bury(rows, 3)
        entry = entry_of(browser.post("/acts", **preview(browser), why="slowly", rate="200", limit="2"))
        assert "2 messages redriven" in ended(browser, entry)
        assert "outbox-tasks redrive --all --rate 200 --limit 2 --why slowly" in browser.text(f"/acts/{entry}")
        asked = browser.read("/acts/new", action="redrive", rate="200", limit="2", why="slowly")
        assert "outbox-tasks redrive --all --rate 200 --limit 2 --why slowly" in words(asked)
        assert (form(asked)["rate"], form(asked)["limit"], form(asked)["why"]) == ("200", "2", "slowly")

    def test_tries_now_what_waits_for_an_attempt(self, browser: Browser, store: Store, rows: Rows) -> None:
        waits = {"attempts": 2, "last_error_code": "http_429", "locked_until": seconds_from_now(900)}
        one, two, three = rows.insert(3, **waits)
        assert f"/acts/new?action=try&amp;id={one}" in browser.read(f"/messages/{one}")
        assert '<button name="action" value="try">' in browser.read("/messages")
        link = "/acts/new?action=try&amp;destination=orders"
        assert link in browser.read("/destinations/orders")
        fields = preview(browser, "try", id=one)
        assert "1 message made due" in ended(browser, entry_of(browser.post("/acts", **fields, why="mended")))
        entry = entry_of(browser.post("/acts", **preview(browser, "try", destination="orders"), why="mended"))
        assert "2 messages made due" in ended(browser, entry)
        assert [rows.one(id).place for id in (one, two, three)] == ["ready"] * 3
        assert "outbox-tasks try --destination orders --why mended" in browser.text(f"/acts/{entry}")

    def test_of_another_kind_is_shown_too(self, browser: Browser, store: Store, rows: Rows) -> None:
        [id] = bury(rows)
        entry = Operator(store, "bob", "typo").edit(UUID(id), b"{}", b"[1]", "application/json")
        shown = browser.text(f"/acts/{entry}")
        assert f"No. {entry}: edit" in shown
        assert "size 3" in shown
        assert "e30" not in shown  # the former payload

    def test_that_is_not_there(self, browser: Browser, rows: Rows) -> None:
        for entry in ("0", "99", "-1", "x", "1" * 30, "٣", "1 OR 1=1"):
            assert browser.get(f"/acts/{entry}").status_code == 404
            assert browser.post(f"/acts/{entry}/stop").status_code == 404

    def test_that_nobody_runs_is_taken_by_this_process(self, visit: Visit, rows: Rows) -> None:
        bury(rows, 3)
        reader = visit(read_only=True)
        acts_of = reader.page._shared.get().acts
        acts_of.wake = lambda: None  # type: ignore[method-assign]
        entry = acts_of.begin("redrive", Filter(states=("dead",)), who="bob", why="so", token=uuid4())
        assert "No process runs it at this moment." in reader.text(f"/acts/{entry}")
        assert acts_of._thread is None
        assert "3 messages redriven" in ended(visit(), entry)


FACTS = (
    "{}",
    "5",
    "null",
    '"so"',
    '["so"]',
    '{"changed": 5, "former": "%"}',
    '{"changed": ["%", null], "former": 5}',
    '{"states": 5}',
    '{"older_than": "x", "seconds": "y", "limit": []}',
    '{"key": {"a": 1}, "named": "z"}',
)


def test_an_entry_that_nobody_of_us_wrote_is_shown(browser: Browser, rows: Rows) -> None:
    insert = text(
        f"INSERT INTO {rows.tables.audit} (who, action, target, count, facts)"
        " VALUES ('bob', 'redrive', :target, 3, CAST(:facts AS jsonb)) RETURNING seq"
    )
    for target, facts in product(("nothing", "\u202e", "%", None), FACTS):
        with rows.engine.begin() as connection:
            entry = connection.execute(insert, {"target": target, "facts": facts}).scalar_one()
        assert browser.get(f"/acts/{entry}").status_code == 200, (target, facts)
        assert browser.get(f"/audit/{entry}/payload").status_code in (404, 400), (target, facts)
    assert browser.get("/audit").status_code == 200


def test_a_form_that_was_sent_for_another_act_is_refused(browser: Browser, rows: Rows) -> None:
    first, second = bury(rows, 2)
    fields = preview(browser, id=first)
    entry = entry_of(browser.post("/acts", **{**fields, "why": "so"}))
    assert entry_of(browser.post("/acts", **{**fields, "why": "so"})) == entry
    refused = browser.post("/acts", **{**fields, "id": second, "why": "so"})
    assert (refused.status_code, f"act {entry}" in told(refused)) == (409, True)
    assert rows.state(second) == "dead"
