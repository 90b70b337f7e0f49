"""What only Azure Service Bus has: properties, sizes, sessions and partitions, credentials, and how links end."""

from __future__ import annotations

import hashlib
import logging
import sys
import threading
import time
from contextlib import closing
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from urllib.parse import quote

import pytest
from azure.core.exceptions import ClientAuthenticationError

from outbox_tasks.destinations.service_bus import link
from outbox_tasks.destinations.service_bus import url as service_bus_url
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.model import Result
from tests.conftest import eventually
from tests.contract.counterparts.azure_service_bus import LOGIN, Counterpart, application
from tests.contract.messages import SENT, WHOLE, brief, loaded, message, numbers, published, sent_by, whole, within
from tests.contract.servers.service_bus import KEY, LARGEST, TOKEN, text

OK = (Result.SENT, None)


def sizes(target: Counterpart) -> list[int]:
    """How many messages came with each delivery."""
    return [len(delivery) for delivery in target.deliveries()]


class TestTheWire:
    def test_the_sections_of_a_message(self, target: Counterpart) -> None:
        """A header does not pass for an attribute."""
        forged = {"cloudEvents_type": "forged", "cloudEvents:type": "forged", "CLOUDEVENTS_ID": "forged"}
        assert published(target, replace(WHOLE, headers=WHOLE.headers | forged)) == [SENT]
        [arrived] = target.raw()
        properties: Any = arrived.properties
        standing = (text(properties.message_id), text(properties.subject), text(properties.content_type))
        assert (arrived.data, standing) == ([WHOLE.payload], (WHOLE.id, "order.created", "application/json"))
        assert application(arrived) == whole("cloudEvents_", specversion="1.0") | {"tenant": "t1"}
        assert arrived.message_annotations == {b"x-opt-partition-key": b"k"}


class TestSizes:
    def test_one_that_just_fits_is_sent_alone_and_one_byte_more_is_dead(self, target: Counterpart) -> None:
        published(target, message(0, payload=b"x" * 1000))
        [[sent]] = target.deliveries()
        room = LARGEST - len(sent) + 1000
        fits, large = (message(n, payload=b"x" * size) for n, size in ((1, room), (2, room + 1)))
        outcomes = published(target, message(3), fits, large, message(4))
        assert brief(outcomes) == [OK, OK, (Result.DEAD, "too_large"), OK]
        assert outcomes[2].error == f"{LARGEST + 1} bytes; the queue or topic takes {LARGEST}"
        assert sizes(target) == [1, 1, 1, 1]


class TestSessionsAndPartitions:
    def test_the_key_is_the_session(self, target: Counterpart) -> None:
        target.place = f"sessions-{target.place}"
        long = "ü" * 129
        sent = [message(0, key="a"), message(1, key="b"), message(2), message(3, key=long)]
        assert published(target, *sent, options="&sessions=true") == [SENT] * 4
        groups = ["a", "b", sent[2].id, hashlib.sha256(long.encode()).hexdigest()]
        assert [text(arrived.properties.group_id) for arrived in target.raw()] == groups  # type: ignore[union-attr]
        assert not any(arrived.message_annotations for arrived in target.raw())
        assert sizes(target) == [4]

    def test_a_queue_that_needs_sessions_says_so(self, target: Counterpart) -> None:
        """Somebody may mend the URL: nothing is dead for it."""
        target.place = f"sessions-{target.place}"
        outcomes = published(target, message(0, key="a"), message(1))
        assert brief(outcomes) == [(Result.OUTAGE, "needs_sessions")] * 2

    def test_a_batch_of_several_keys_is_divided_where_there_are_partitions(self, target: Counterpart) -> None:
        target.place = f"partitioned-{target.place}"
        batch = [message(n, key=f"k{n}" if n < 3 else None) for n in range(6)]
        assert published(target, *batch) == [SENT] * 6
        assert sizes(target) == [1] * 6


class TestCredentials:
    @pytest.fixture
    def identity(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        """Stands in for azure-identity, which would ask machines that are not here."""
        made = ModuleType("azure.identity")
        made.__spec__ = ModuleSpec("azure.identity", None)
        monkeypatch.setitem(sys.modules, "azure.identity", made)
        return made

    def test_are_those_of_azure_identity_without_a_key(self, target: Counterpart, identity: Any) -> None:
        tokens: list[Any] = [ClientAuthenticationError("no credential was found"), "another.token", "late", TOKEN]
        tokens[0].status_code = 400  # as Microsoft Entra answers to a wrong secret

        class DefaultAzureCredential:
            def get_token(self, *_: str, **__: Any) -> Any:
                if isinstance(token := tokens[0], Exception):
                    raise token
                if token == "late":
                    del tokens[0]
                    time.sleep(3)
                    token = TOKEN
                return type("AccessToken", (), {"token": token, "expires_on": int(time.time()) + 3600})

            def close(self) -> None:
                """Nothing is open."""

        identity.DefaultAzureCredential = DefaultAzureCredential
        publisher: Any = loaded(target.url(target.place).replace(f"{LOGIN}@", ""), send_timeout=10)
        with closing(publisher):
            for _ in range(2):
                outcomes = sent_by(publisher, message(0), message(1))
                assert brief(outcomes) == [(Result.OUTAGE, "unauthorized")] * 2
                assert "another" not in str(outcomes[0].error)
                del tokens[0]
            publisher._timeout = 2
            assert brief(sent_by(publisher, message(0))) == [(Result.OUTAGE, "timeout")]
            publisher._timeout = 10
            assert publisher.publish([message(1)]) == [SENT]
            eventually(lambda: not [each for each in threading.enumerate() if "outbox send" in each.name])
        assert numbers(target) == [1], "nothing is sent that counts as failed"

    def test_need_azure_identity_if_there_is_no_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(service_bus_url, "find_spec", lambda _: None)
        with pytest.raises(ConfigurationError, match="pip install azure-identity"):
            loaded("azureservicebus://shop.servicebus.windows.net/orders")

    def test_are_in_no_log(self, target: Counterpart, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            published(target, message(0), message(1, event_type="close"))
            with closing(loaded(target.wrong_password_url(target.place))) as publisher:
                publisher.publish([message()])
        assert caplog.records
        for secret in (KEY, quote(KEY, safe=""), "SharedAccessSignature", "SharedAccessKey="):
            assert secret not in caplog.text


def test_the_emulator_is_spoken_to_without_tls(target: Counterpart) -> None:
    with closing(loaded(target.emulator_url(target.place))) as publisher:
        assert publisher.publish([message(0), message(1)]) == [SENT] * 2
    assert numbers(target) == [0, 1]


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            ("com.microsoft:argument-error", (Result.DEAD, "refused")),
            ("com.microsoft:something-new", (Result.RETRY, "something_new")),
        ],
    )
    def test_of_one_message_harms_only_that_one(self, target: Counterpart, condition: str, expected: Any) -> None:
        bad = message(1, event_type=f"reject {condition}")
        assert brief(published(target, message(0), bad, message(2))) == [OK, expected, OK]
        assert numbers(target) == [0, 2]

    @pytest.mark.parametrize(
        ("condition", "expected"),
        [
            ("amqp:resource-limit-exceeded", (Result.OUTAGE, "full")),
            ("com.microsoft:timeout", (Result.OUTAGE, "timeout")),
            ("com.microsoft:server-busy", (Result.RETRY, "throttled")),
        ],
    )
    def test_because_of_the_place_holds_for_all(self, target: Counterpart, condition: str, expected: Any) -> None:
        outcomes = published(target, message(0), message(1, event_type=f"reject {condition}"), message(2))
        assert brief(outcomes) == [expected] * 3
        assert numbers(target) == []
        assert outcomes[0].retry_after == (10 if expected[1] == "throttled" else None)

    @pytest.mark.parametrize(("prefix", "code"), [("status-404", "unroutable"), ("status-500", "unavailable")])
    def test_a_place_that_can_not_be_sent_to_is_an_outage(self, target: Counterpart, prefix: str, code: str) -> None:
        target.place = f"{prefix}-{target.place}"
        assert brief(published(target, message(0), message(1))) == [(Result.OUTAGE, code)] * 2


class TestTheLink:
    @pytest.mark.parametrize("how", ["detach", "close"])
    def test_that_ends_for_one_message_harms_only_that_one(self, target: Counterpart, how: str) -> None:
        """Nobody knows what of the batch was taken, so it is not sent again at once. Alone it costs an attempt, so that
        what always ends the link does not last for ever."""
        messages = [message(0), message(1, event_type=how), message(2)]
        with closing(loaded(target.url(target.place))) as publisher:
            assert brief(publisher.publish(messages)) == [(Result.RETRY, "failed_together")] * 3
            alone = [outcome for one in messages for outcome in publisher.publish([one])]
        assert brief(alone) == [OK, (Result.RETRY, "detached"), OK]

    def test_that_the_service_has_dropped_is_made_again(
        self, target: Counterpart, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with closing(loaded(target.url(target.place))) as publisher:
            assert publisher.publish([message(0)]) == [SENT]
            target.asked(drop=target.place)
            [outcome] = publisher.publish([message(1)])
            assert outcome.result is not Result.OUTAGE
            eventually(lambda: publisher.publish([message(1)]) == [SENT])
            target.asked(drop=target.place)
            monkeypatch.setattr(link, "IDLE_SECONDS", 0)  # then it is replaced before it is used
            assert publisher.publish([message(2)]) == [SENT]

    def test_no_answer_is_an_outage_in_time_for_what_was_sent(self, target: Counterpart) -> None:
        with within(1.5):
            outcomes = published(target, message(0, event_type="silent"), message(1), send_timeout=1.5)
        assert brief(outcomes) == [(Result.OUTAGE, "timeout")] * 2
        payload = b"x" * 150_000  # each goes alone
        messages = [message(n, payload=payload, event_type="silent" if n == 1 else "fine") for n in range(3)]
        assert brief(published(target, *messages, send_timeout=4)) == [
            OK, (Result.OUTAGE, "timeout"), (Result.BEHIND, None),
        ]  # fmt: skip
