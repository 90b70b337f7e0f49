"""What Azure Service Bus may answer, and what becomes of its links and connections."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from typing import Any

import pytest
from azure.servicebus import exceptions as azure

from outbox_tasks.destinations.service_bus import answers
from outbox_tasks.destinations.service_bus import publisher as service_bus
from outbox_tasks.model import Result
from tests.conftest import eventually
from tests.contract.counterparts.azure_service_bus import Counterpart
from tests.contract.messages import SENT, loaded, message, numbers, sent_by, within
from tests.contract.service_bus import brief, publish


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            ("com.microsoft:argument-error", (Result.DEAD, "refused")),
            ("com.microsoft:argument-out-of-range", (Result.DEAD, "refused")),
            ("amqp:decode-error", (Result.DEAD, "refused")),
            ("amqp:link:message-size-exceeded", (Result.DEAD, "too_large")),
            ("amqp:not-allowed", (Result.RETRY, "not_allowed")),
            ("amqp:internal-error", (Result.RETRY, "internal_error")),
            ("com.microsoft:something-new", (Result.RETRY, "something_new")),
        ],
    )
    def test_of_one_message_harms_only_that_one(self, target: Counterpart, condition: str, expected: Any) -> None:
        bad = message(1, event_type=f"reject {condition}")
        assert brief(publish(target, message(0), bad, message(2))) == [
            (Result.SENT, None),
            expected,
            (Result.SENT, None),
        ]
        assert numbers(target) == [0, 2]

    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            ("amqp:resource-limit-exceeded", (Result.OUTAGE, "full")),
            ("com.microsoft:entity-disabled", (Result.OUTAGE, "disabled")),
            ("amqp:unauthorized-access", (Result.OUTAGE, "unauthorized")),
            ("com.microsoft:auth-failed", (Result.OUTAGE, "unauthorized")),
            ("amqp:not-found", (Result.OUTAGE, "unroutable")),
            ("com.microsoft:timeout", (Result.OUTAGE, "timeout")),
            ("com.microsoft:server-busy", (Result.RETRY, "throttled")),
        ],
    )
    def test_because_of_the_place_holds_for_all(self, target: Counterpart, condition: str, expected: Any) -> None:
        outcomes = publish(target, message(0), message(1, event_type=f"reject {condition}"), message(2))
        assert brief(outcomes) == [expected] * 3
        assert numbers(target) == []
        assert outcomes[0].retry_after == (10 if expected[1] == "throttled" else None)


class TestTheLink:
    @pytest.mark.parametrize("how", ["detach", "close"])
    def test_that_ends_for_one_message_harms_only_that_one(self, target: Counterpart, how: str) -> None:
        """Nobody knows what of the batch was taken, so it is not sent again at once. Alone it costs an attempt, so that
        what always ends the link does not last for ever."""
        messages = [message(0), message(1, event_type=how), message(2)]
        with closing(loaded(target.url(target.place))) as publisher:
            assert brief(publisher.publish(messages)) == [(Result.RETRY, "failed_together")] * 3
            alone = [outcome for one in messages for outcome in publisher.publish([one])]
        assert brief(alone) == [(Result.SENT, None), (Result.RETRY, "detached"), (Result.SENT, None)]

    def test_that_ends_again_and_again_is_an_outage(self, target: Counterpart) -> None:
        with closing(loaded(target.url(target.place))) as publisher:
            large = b"x" * 150_000  # each goes alone
            outcomes = publisher.publish([message(n, payload=large, event_type="close") for n in range(4)])
            assert brief(outcomes) == [(Result.RETRY, "detached")] * 2 + [(Result.OUTAGE, "connection")] * 2
            assert publisher.publish([message(4)]) == [SENT]

    def test_that_ends_now_and_then_is_none(self, target: Counterpart) -> None:
        large = b"x" * 150_000  # each goes alone
        kinds = ["close", "fine", "close", "fine"]
        outcomes = publish(target, *(message(n, payload=large, event_type=kind) for n, kind in enumerate(kinds)))
        assert brief(outcomes) == [(Result.RETRY, "detached"), (Result.SENT, None)] * 2

    def test_that_the_service_has_dropped_is_made_again(self, target: Counterpart) -> None:
        with closing(loaded(target.url(target.place))) as publisher:
            assert publisher.publish([message(0)]) == [SENT]
            target.asked(drop=target.place)
            [outcome] = publisher.publish([message(1)])
            assert outcome.result is not Result.OUTAGE
            eventually(lambda: publisher.publish([message(1)]) == [SENT])

    def test_that_was_idle_is_replaced_before_it_is_used(
        self, target: Counterpart, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with closing(loaded(target.url(target.place))) as publisher:
            assert publisher.publish([message(0)]) == [SENT]
            target.asked(drop=target.place)
            monkeypatch.setattr(service_bus, "IDLE_SECONDS", 0)
            assert publisher.publish([message(1)]) == [SENT]

    def test_no_answer_is_an_outage_in_time(self, target: Counterpart) -> None:
        with within(1.5):
            outcomes = publish(target, message(0, event_type="silent"), message(1), send_timeout=1.5)
        assert brief(outcomes) == [(Result.OUTAGE, "timeout")] * 2

    def test_what_was_not_reached_in_time_is_no_outage_if_others_were(self, target: Counterpart) -> None:
        payload = b"x" * 150_000  # each goes alone
        silent = message(1, payload=payload, event_type="silent")
        outcomes = publish(target, message(0, payload=payload), silent, message(2, payload=payload), send_timeout=4)
        assert brief(outcomes) == [(Result.SENT, None)] + [(Result.RETRY, "timeout")] * 2

    def test_no_thread_waits_for_ever(self, target: Counterpart) -> None:
        """The client would, for a server that takes the connection and never answers."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            with closing(loaded(target.url_at(silent.getsockname()[1]), send_timeout=1)) as publisher:
                [outcome] = sent_by(publisher, message())
            assert (outcome.result, outcome.code) == (Result.OUTAGE, "timeout")
            eventually(lambda: not [each for each in threading.enumerate() if "Azure" in each.name])


class TestThePlace:
    @pytest.mark.parametrize(
        ("prefix", "code"),
        [
            ("missing", "unroutable"),
            ("disabled", "disabled"),
            ("forbidden", "unauthorized"),
            ("status-403", "unauthorized"),
            ("status-404", "unroutable"),
            ("status-500", "unavailable"),
        ],
    )
    def test_that_can_not_be_sent_to_is_an_outage(self, target: Counterpart, prefix: str, code: str) -> None:
        target.place = f"{prefix}-{target.place}"
        assert brief(publish(target, message(0), message(1))) == [(Result.OUTAGE, code)] * 2

    def test_has_the_destinations_name_if_the_url_has_no_path(self, target: Counterpart) -> None:
        known = len(target.asked(told="orders"))
        with closing(loaded(target.url(""))) as publisher:
            assert publisher.publish([message()]) == [SENT]
        assert len(target.asked(told="orders")) == known + 1


@pytest.mark.parametrize(("answered", "result"), [(False, Result.OUTAGE), (True, Result.RETRY)])
def test_a_timeout_is_an_outage_only_if_nothing_was_answered(answered: bool, result: Result) -> None:
    """Whoever of the two notices it first: `publish`, or its thread."""

    class Link:
        def send(self, *_: object) -> None:
            raise azure.OperationTimeoutError

    publisher: Any = loaded("azureservicebus://p:k@shop.servicebus.windows.net/orders")
    outcome = publisher._sent(Link(), None, service_bus.Round(0, answered=answered))
    assert (outcome.result, outcome.code) == (result, "timeout")


def test_an_error_that_nobody_knows_is_worth_another_attempt() -> None:
    outcome = answers.outcome_of(azure.ServiceBusError("odd"))
    assert (outcome.result, outcome.code, outcome.error) == (Result.RETRY, "ServiceBusError", "odd")
