"""What only Azure Service Bus has: properties, sizes, sessions and partitions, credentials and TLS."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
import time
from contextlib import closing
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import pytest
from azure.core.exceptions import ClientAuthenticationError

from outbox_tasks.destinations import load
from outbox_tasks.destinations.service_bus import url as service_bus_url
from outbox_tasks.errors import ConfigurationError
from outbox_tasks.model import Result
from tests.contract.counterparts.azure_service_bus import Counterpart
from tests.contract.messages import SENT, configured, loaded, message, numbers, sent_by
from tests.contract.servers import amqp
from tests.contract.servers.service_bus import LARGEST
from tests.contract.servers.shared_access import KEY, TOKEN
from tests.contract.service_bus import brief, publish, sizes

ROOT = Path(__file__).parents[2]


class TestTheWire:
    def test_the_sections_of_a_message(self, target: Counterpart) -> None:
        sent = message(key="k", headers={"tenant": "t1"})
        assert publish(target, sent) == [SENT]
        [sections] = target.raw()
        assert sections[amqp.DATA] == sent.payload
        properties = sections[amqp.PROPERTIES]
        assert (properties[0], properties[3], properties[6]) == (sent.id, "order.created", "application/json")
        assert sections[amqp.APPLICATION] == {
            "cloudEvents_id": sent.id, "cloudEvents_type": "order.created", "cloudEvents_source": "/shop",
            "cloudEvents_time": "2030-01-02T03:04:05.000678+00:00", "cloudEvents_specversion": "1.0",
            "cloudEvents_partitionkey": "k", "tenant": "t1",
        }  # fmt: skip
        assert sections[amqp.ANNOTATIONS] == {"x-opt-partition-key": "k"}

    def test_a_batch_is_one_delivery_in_order(self, target: Counterpart) -> None:
        assert publish(target, *(message(n, key=f"k{n}") for n in range(100))) == [SENT] * 100
        assert sizes(target) == [100]
        assert numbers(target) == list(range(100))

    @pytest.mark.parametrize("name", ["cloudEvents_type", "cloudEvents:type", "CLOUDEVENTS_ID"])
    def test_a_header_does_not_pass_for_an_attribute(self, target: Counterpart, name: str) -> None:
        assert publish(target, message(headers={name: "forged", "other": "kept"})) == [SENT]
        [sections] = target.raw()
        assert "forged" not in sections[amqp.APPLICATION].values()
        assert sections[amqp.APPLICATION]["other"] == "kept"

    @pytest.mark.parametrize("field", ["headers", "key", "content_type"])
    def test_a_text_that_is_not_unicode_is_dead(self, target: Counterpart, field: str) -> None:
        wrong: Any = {"a": "\ud800"} if field == "headers" else "\ud800"
        outcomes = publish(target, message(0), message(1, **{field: wrong}), message(2))
        assert brief(outcomes) == [(Result.SENT, None), (Result.DEAD, "not_unicode"), (Result.SENT, None)]


class TestSizes:
    def test_batches_are_no_larger_than_a_message_may_be(self, target: Counterpart) -> None:
        payload = json.dumps({"n": 0, "text": "x" * 100_000}).encode()
        assert publish(target, *(message(n, payload=payload) for n in range(5))) == [SENT] * 5
        assert sizes(target) == [2, 2, 1]

    def test_one_that_just_fits_is_sent_alone_and_one_byte_more_is_dead(self, target: Counterpart) -> None:
        publish(target, message(0, payload=b"x" * 1000))
        [[sent]] = target.deliveries()
        room = LARGEST - len(sent) + 1000
        fits, large = (message(n, payload=b"x" * size) for n, size in ((1, room), (2, room + 1)))
        outcomes = publish(target, message(3), fits, large, message(4))
        assert brief(outcomes) == [(Result.SENT, None)] * 2 + [(Result.DEAD, "too_large"), (Result.SENT, None)]
        assert outcomes[2].error == f"{LARGEST + 1} bytes; the queue or topic takes {LARGEST}"
        assert sizes(target) == [1, 1, 1, 1]


class TestSessionsAndPartitions:
    @pytest.fixture(autouse=True)
    def fresh(self, target: Counterpart) -> None:
        self.plain = target.place

    def session(self, target: Counterpart) -> list[str | None]:
        return [[*sections[amqp.PROPERTIES], *[None] * 13][10] for sections in target.raw()]

    def test_the_key_is_the_session(self, target: Counterpart) -> None:
        target.place = f"sessions-{self.plain}"
        long = "ü" * 129
        sent = [message(0, key="a"), message(1, key="b"), message(2), message(3, key=long)]
        assert publish(target, *sent, options="&sessions=true") == [SENT] * 4
        assert self.session(target) == ["a", "b", sent[2].id, hashlib.sha256(long.encode()).hexdigest()]
        assert all(amqp.ANNOTATIONS not in sections for sections in target.raw())
        assert sizes(target) == [4]

    def test_a_queue_that_needs_sessions_says_so(self, target: Counterpart) -> None:
        """Somebody may mend the URL: nothing is dead for it."""
        target.place = f"sessions-{self.plain}"
        outcomes = publish(target, message(0, key="a"), message(1))
        assert brief(outcomes) == [(Result.OUTAGE, "needs_sessions")] * 2

    def test_a_batch_of_several_keys_is_divided_where_there_are_partitions(self, target: Counterpart) -> None:
        target.place = f"partitioned-{self.plain}"
        batch = [message(n, key=f"k{n}" if n < 3 else None) for n in range(6)]
        with closing(loaded(target.url(target.place))) as publisher:
            assert publisher.publish(batch) == [SENT] * 6
            assert sizes(target) == [1] * 6
            assert publisher.publish(batch) == [SENT] * 6
        assert sizes(target)[6:] == [1, 1, 1, 3]

    def test_a_passing_failure_of_a_batch_tells_nothing_of_partitions(self, target: Counterpart) -> None:
        bad = message(0, key="a", event_type="once amqp:internal-error")
        with closing(loaded(target.url(target.place))) as publisher:
            assert publisher.publish([bad, message(1, key="b")]) == [SENT] * 2
            assert publisher.publish([message(2, key="a"), message(3, key="b")]) == [SENT] * 2
        assert sizes(target) == [1, 1, 2]


class TestCredentials:
    @pytest.fixture
    def identity(self, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
        """Stands in for azure-identity, which would ask machines that are not here."""
        made = ModuleType("azure.identity")
        made.__spec__ = ModuleSpec("azure.identity", None)
        monkeypatch.setitem(sys.modules, "azure.identity", made)
        return made

    @staticmethod
    def credential(token: str | Exception) -> type[Any]:
        class DefaultAzureCredential:
            def get_token(self, *_: str, **__: Any) -> Any:
                if isinstance(token, Exception):
                    raise token
                return type("AccessToken", (), {"token": token, "expires_on": int(time.time()) + 3600})

            def close(self) -> None:
                """Nothing is open."""

        return DefaultAzureCredential

    def without_login(self, target: Counterpart) -> str:
        return target.url(target.place).replace(target.url("").partition("://")[2].partition("@")[0] + "@", "")

    def test_are_those_of_azure_identity_without_a_key(self, target: Counterpart, identity: Any) -> None:
        identity.DefaultAzureCredential = self.credential(TOKEN)
        with closing(loaded(self.without_login(target))) as publisher:
            assert publisher.publish([message()]) == [SENT]

    @pytest.mark.parametrize("token", ["another.token", ClientAuthenticationError("no credential was found")])
    def test_that_are_refused_or_not_found_are_an_outage(
        self, target: Counterpart, identity: Any, token: str | Exception
    ) -> None:
        if isinstance(token, ClientAuthenticationError):
            token.status_code = 400  # as Microsoft Entra answers to a wrong secret
        identity.DefaultAzureCredential = self.credential(token)
        with closing(loaded(self.without_login(target), send_timeout=10)) as publisher:
            outcomes = sent_by(publisher, message(0), message(1))
        assert brief(outcomes) == [(Result.OUTAGE, "unauthorized")] * 2
        assert "another" not in str(outcomes[0].error)

    def test_need_azure_identity_if_there_is_no_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(service_bus_url, "find_spec", lambda _: None)
        with pytest.raises(ConfigurationError, match="pip install azure-identity"):
            load(*configured("azureservicebus://shop.servicebus.windows.net/orders"))

    def test_are_in_no_log(self, target: Counterpart, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            publish(target, message(0), message(1, event_type="close"))
            publish(target, message(0, event_type="reject amqp:internal-error"))
            with closing(loaded(target.wrong_password_url(target.place))) as publisher:
                publisher.publish([message()])
        assert caplog.records
        for secret in (KEY, quote(KEY, safe=""), "SharedAccessSignature", "SharedAccessKey="):
            assert secret not in caplog.text


class TestTls:
    def test_a_file_that_is_not_there_may_come(self, target: Counterpart) -> None:
        url = target.url(target.place).partition("?")[0] + "?ca_file=/nowhere/ca.pem"
        with closing(loaded(url)) as publisher:
            outcome, dead = sent_by(publisher, message(), message(headers={"n": 5}))
        assert (outcome.result, outcome.code, dead.code) == (Result.OUTAGE, "connection", "bad_headers")
        assert "/nowhere/ca.pem" in str(outcome.error)

    def test_the_emulator_is_spoken_to_without(self, target: Counterpart) -> None:
        with closing(loaded(target.emulator_url(target.place))) as publisher:
            assert publisher.publish([message(0), message(1)]) == [SENT] * 2
        assert numbers(target) == [0, 1]
