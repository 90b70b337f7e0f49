"""Problems of destinations, as the doctor sees them: whether they can be reached is tried, and nothing is sent."""

from __future__ import annotations

import socket

import pytest

from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.operating.problems import Severity, examine
from outbox_tasks.operating.problems.destinations import connection_errors
from tests.conftest import MakeSettings, Stream
from tests.integration.doctoring import found

OF_DESTINATIONS = (
    "no_destinations", "publisher_missing", "destination_url", "destination_away",
)  # fmt: skip


def test_a_destination_that_answers_has_no_problem(settings: MakeSettings) -> None:
    assert found(settings(), *OF_DESTINATIONS) == {}
    in_order = examine(settings(), deep=True).in_order["Destinations"]
    assert in_order[:2] == ["each has a publisher", "the hosts that their URLs name can be reached from here"]


def test_a_destination_out_of_reach(settings: MakeSettings, stream: Stream) -> None:
    some = {"orders": {"url": stream.url}, "gone": {"url": "nats://me:secret@127.0.0.1:1/shop"},
            "nowhere": {"url": "https://does-not-exist.invalid/hooks"}}  # fmt: skip
    away = examine(settings(destinations=some), deep=True, only=OF_DESTINATIONS).problems
    assert [(each.code, each.which, each.severity) for each in away] == [
        ("destination_away", name, Severity.ERROR) for name in ("gone", "nowhere")
    ]
    assert "gone (nats://me:***@127.0.0.1:1/shop) can't be reached" in away[0].fact
    assert "secret" not in str(away)


def test_one_server_of_several_is_enough(settings: MakeSettings) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        some = {"events": {"url": f"kafka://{LOOPBACK}:1,{LOOPBACK}:{server.getsockname()[1]}/orders"}}
        assert found(settings(destinations=some), *OF_DESTINATIONS) == {}


@pytest.mark.parametrize("url", ["celery://?queue=shop", "sqs://eu-west-1/queue"])
def test_what_names_no_host_is_not_tried(settings: MakeSettings, url: str) -> None:
    """Nor is the broker of an application that the relay is installed in."""
    assert found(settings(broker_url=None, destinations={"tasks": {"url": url}}), *OF_DESTINATIONS) == {}


def test_a_destination_without_a_publisher_that_takes_its_url(settings: MakeSettings) -> None:
    urls = {"fax": {"url": "fax://localhost:1/"}, "orders": {"url": "redis+stream://localhost:6379/one/two"}}
    wrong = found(settings(destinations=urls), "publisher_missing", "destination_url")
    assert "'fax'" in wrong["publisher_missing"].fact
    assert "destinations.orders.url" in wrong["destination_url"].fact


def test_no_destination_is_configured(settings: MakeSettings) -> None:
    none = found(settings(destinations={}), "no_destinations")["no_destinations"]
    assert none.fact.startswith("No destination is configured: there is no settings file /")


def test_a_server_that_does_not_answer_is_not_waited_for() -> None:
    """A backlog that is full lets nobody in."""
    with socket.socket() as server, socket.socket() as first:
        server.bind((LOOPBACK, 0))
        server.listen(0)
        first.connect(server.getsockname())
        full = (LOOPBACK, server.getsockname()[1])
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        assert connection_errors([full], seconds=0.2) == {full: "no answer within 0.2 s"}
        for filler in fillers:
            filler.close()
