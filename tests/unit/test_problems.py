"""Which problem comes from which; how the sends to a destination are judged; what the doctor makes of a URL; and that
its page says all that it may say."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_tasks.operating.overview import DestinationStatus
from outbox_tasks.operating.problems import CODES, Problem, Severity
from outbox_tasks.operating.problems.checks import CHECK_FAILED, CHECKS, WORKER_LOST
from outbox_tasks.operating.problems.destinations import addresses
from outbox_tasks.operating.problems.order import FOLLOWS, FOLLOWS_THERE, RANK, folded
from outbox_tasks.operating.problems.problem import PROBLEMS_OF_A_CODE, first_ones, warning
from outbox_tasks.settings.destination import Destination

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


def test_every_problem_is_on_its_page_and_what_only_the_doctor_knows_is_marked() -> None:
    rows = re.findall(r"^\| `(\w+)`( °)? \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(code for code, _ in rows) == sorted(CODES)
    shown_by_status = {code for check in CHECKS if not check.deep for code in check.codes} | {CHECK_FAILED, WORKER_LOST}
    assert {code for code, mark in rows if mark} == CODES - shown_by_status


FOLLOWING = {code: FOLLOWS.get(code, set()) | FOLLOWS_THERE.get(code, set()) for code in {*FOLLOWS, *FOLLOWS_THERE}}


def consequences(code: str) -> set[str]:
    """The codes of all that may follow from a problem, on any way."""
    found: set[str] = set()
    wanted = {code}
    while wanted := {after for each in wanted for after in FOLLOWING.get(each, ())} - found:
        found |= wanted
    return found


def test_no_problem_explains_itself_on_any_way_and_each_that_does_is_one() -> None:
    assert [code for code in FOLLOWING if code in consequences(code)] == []
    assert {*FOLLOWING, *(code for codes in FOLLOWING.values() for code in codes)} <= CODES


def test_no_fact_has_a_secret_of_a_url() -> None:
    assert warning("x", "redis://:hunter2@h/0 is gone", "why", "do").fact == "redis://:***@h/0 is gone"


problems = st.lists(
    st.builds(
        Problem, st.sampled_from(sorted(CODES)), st.sampled_from(Severity), st.just("a"), st.just("b"), st.just("c"),
        st.sampled_from(["", "orders", "mails"]),
    ),
    max_size=30,
)  # fmt: skip


@given(problems)
def test_each_problem_is_shown_once_the_worst_first_and_below_what_it_may_follow_from(found: list[Problem]) -> None:
    roots = folded(found)
    shown = [problem for root in roots for problem in (root, *root.follows)]
    assert Counter(problem.name for problem in shown) == Counter(problem.name for problem in found)
    assert [RANK[root.severity] for root in roots] == sorted(RANK[root.severity] for root in roots)
    for root in roots:
        assert {problem.code for problem in root.follows} <= consequences(root.code)


def test_what_follows_is_below_the_deepest_root_and_only_there() -> None:
    def problem(code: str, which: str = "") -> Problem:
        return Problem(code, Severity.ERROR, "", "", "", which)

    [paused, dead] = folded(
        [problem("stale", "orders"), problem("keys_blocked", "mails"), problem("paused", "orders"),
         problem("dead_letters", "mails"), problem("breaker_open", "orders")]
    )  # fmt: skip
    assert (paused.code, [each.code for each in paused.follows]) == ("paused", ["stale", "breaker_open"])
    assert (dead.code, [each.code for each in dead.follows]) == ("dead_letters", ["keys_blocked"])
    assert len(folded([problem("paused", "orders"), problem("stale", "mails")])) == 2
    [away] = folded([problem("no_claims"), problem("broker_away"), problem("no_workers")])
    assert {each.code for each in away.follows} == {"no_claims", "no_workers"}
    stale = problem("stale", "orders")
    [held] = folded([Problem("writer_open", Severity.WARNING, "", "", ""), stale])
    assert (held.code, held.severity) == ("writer_open", Severity.ERROR), "as bad as what follows from it"
    [paused] = folded([Problem("paused", Severity.NOTE, "", "", "", "orders"), stale])
    assert (paused.code, paused.severity) == ("paused", Severity.NOTE), "unless people wanted it"


def test_of_many_problems_of_a_code_the_first_are_named_and_the_rest_counted() -> None:
    def bounded(many: int) -> list[Problem]:
        make = partial(warning, "stale", cause="why", remedy="do")
        return [*first_ones((make(f"{n}", which=f"d{n}") for n in range(many)), "destination")]

    assert [len(bounded(many)) for many in (3, PROBLEMS_OF_A_CODE + 1, 1000)] == [3, 11, 11]
    assert (bounded(1000)[-1].fact, bounded(1000)[-1].how_many) == ("The same holds for 990 more destinations.", 990)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("redis+stream://:secret@host/1/orders", [("host", 6379)]),
        ("rediss://host:7000/0/q?ssl_cert_reqs=none", [("host", 7000)]),
        ("amqps://user:p%40ss@[::1]/vhost?queue=q", [("::1", 5671)]),
        ("kafka://u:p@a:1,b/topic?tls=true&ca=/ca.pem", [("a", 1), ("b", 9092)]),
        ("https://partner.example.org/events?a=b", [("partner.example.org", 443)]),
        ("celery://?broker=redis://shop:6380/2", [("shop", 6380)]),
        ("celery://", [("a", 5672), ("b", 5672)]),
        ("own://somewhere", []),
        ("own://somewhere:99/x", [("somewhere", 99)]),
    ],
)
def test_where_a_url_leads(url: str, expected: list[tuple[str, int]]) -> None:
    assert addresses(Destination(url=url), "amqp://a//;amqp://b//") == expected


def status(**facts: Any) -> DestinationStatus:
    made = DestinationStatus(**{name: value for name, value in facts.items() if name not in ("dead", "waiting")})
    made.states["dead"], made.states["retrying"] = facts.get("dead", 0), facts.get("waiting", 0)
    return made


@pytest.mark.parametrize(
    ("facts", "refuses"),
    [
        ({"refused": 5, "failed_ago": 60.0, "waiting": 1}, True),
        ({"refused": 5, "failed_ago": 60.0, "dead": 1}, True),
        ({"refused": 5, "failed_ago": 60.0}, False),  # somebody has seen to it
        ({"refused": 4, "failed_ago": 60.0, "waiting": 1}, False),
        ({"refused": 5, "failed_ago": 3601.0, "waiting": 1}, False),  # nobody knows any more
        ({"refused": 5, "waiting": 1}, False),
    ],
)
def test_a_destination_that_refuses_everything(facts: dict[str, Any], refuses: bool) -> None:
    assert status(**facts).refuses is refuses
    assert status(**facts).state == ("refuses" if refuses else "closed")


@pytest.mark.parametrize(
    ("facts", "fails"),
    [
        ({"failed": 5.0, "sent": 20.0, "failed_ago": 1.0, "arrived_ago": 1.0}, True),
        ({"failed": 5.0, "sent": 21.0, "failed_ago": 1.0, "arrived_ago": 1.0}, False),  # less than a fifth
        ({"failed": 4.9, "sent": 0.0, "failed_ago": 1.0}, False),
        ({"failed": 60.0, "sent": 60.0, "failed_ago": 4.0, "arrived_ago": 1.0}, False),  # 3 s without a failure
        ({"failed": 60.0, "sent": 60.0, "failed_ago": 2.9, "arrived_ago": 1.0}, True),
        ({"failed": 5.0, "sent": 5.0, "failed_ago": 16.0, "arrived_ago": 1.0}, False),  # 15 s are enough of any
        ({"failed": 60.0, "sent": 60.0, "failed_ago": 9.0, "arrived_ago": 9.0}, True),  # nothing has arrived since
    ],
)
def test_a_destination_of_which_many_sends_fail_until_it_has_recovered(facts: dict[str, Any], fails: bool) -> None:
    assert status(**facts).fails is fails


def test_the_next_try_matters_until_a_send_arrives() -> None:
    assert status(put_off=9.0).waits_for == status(put_off=9.0, failed_ago=2.0, arrived_ago=3.0).waits_for == 9.0
    assert status(put_off=9.0, arrived_ago=3.0).waits_for is None
    assert status(put_off=9.0, failed_ago=3.0, arrived_ago=2.0).waits_for is None
    facts: dict[str, Any] = {"refused": 9, "failed": 9.0, "failed_ago": 1.0, "waiting": 9}
    assert status(**facts, breaker={"state": "paused", "failures": 0}).state == "paused"
    assert status(**facts, configured=False).state == "unknown"
