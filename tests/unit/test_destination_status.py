"""How the sends to a destination go, judged by the numbers of the last minute."""

from __future__ import annotations

from typing import Any

import pytest

from outbox_tasks.operating.overview import DestinationStatus


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


def test_what_people_have_paused_is_not_said_to_fail() -> None:
    facts: dict[str, Any] = {"refused": 9, "failed": 9.0, "failed_ago": 1.0, "waiting": 9}
    assert status(**facts, breaker={"state": "paused", "failures": 0}).state == "paused"
    assert status(**facts, configured=False).state == "unknown"
