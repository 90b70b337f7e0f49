"""What only gRPC has: the service's definition, statuses of calls and of messages, sizes and TLS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from outbox_tasks.destinations.grpc import publisher as grpc_events
from outbox_tasks.destinations.grpc import receiver
from outbox_tasks.destinations.grpc.receiver import CloudEvent, DeliverRequest
from outbox_tasks.model import Result
from tests.certificates import self_signed
from tests.contract.counterparts.grpc_servers import GrpcReceiver as Counterpart
from tests.contract.messages import SENT, WHOLE, brief, loaded, message, published, sent_by

OK = (Result.SENT, None)


def outcomes(target: Counterpart, *types: str, options: str = "") -> list[tuple[Result, str | None]]:
    """What becomes of messages with these event types."""
    return brief(published(target, *(message(n, event_type=t) for n, t in enumerate(types)), options=options))


class TestTheWire:
    def test_an_event_in_the_protobuf_format_with_the_headers_beside_it(self, target: Counterpart) -> None:
        target.place += "+b/c=="  # a plus in a token is a plus
        assert published(target, WHOLE) == [SENT]
        [(event, headers)] = target.raw()
        assert (event.id, event.source, event.spec_version, event.type) == (WHOLE.id, "/shop", "1.0", "order.created")
        assert event.WhichOneof("data") == "binary_data"
        kinds = {name: value.WhichOneof("attr") for name, value in event.attributes.items()}
        assert kinds == {
            "time": "ce_timestamp", "subject": "ce_string", "partitionkey": "ce_string", "traceparent": "ce_string",
            "datacontenttype": "ce_string",
        }  # fmt: skip
        assert headers == {"tenant": "t1"}

    def test_the_compiled_definition_is_that_of_the_files(self) -> None:
        """The files are what receivers compile, so that the compiled one must not stay behind."""
        files = [file.read_text() for file in Path(str(receiver.__file__)).parent.glob("*.proto")]
        written = [found for text in files for found in re.findall(r"(\w+)\s*=\s*(\d+);", re.sub(r"//.*", "", text))]
        compiled: list[tuple[str, str]] = []
        kinds = [
            kind
            for message_type in (CloudEvent, DeliverRequest)
            for kind in message_type.DESCRIPTOR.file.message_types_by_name.values()
        ]
        for kind in kinds:
            kinds += [nested for nested in kind.nested_types if not nested.GetOptions().map_entry]
            compiled += [(field.name, str(field.number)) for field in kind.fields]
        assert sorted(compiled) == sorted(written)
        [service] = DeliverRequest.DESCRIPTOR.file.services_by_name.values()
        [method] = service.methods
        assert f"/{service.full_name}/{method.name}" == receiver.DELIVER
        assert [method.input_type.name, method.output_type.name] == ["DeliverRequest", "DeliverResponse"]


class TestTheAnswerForOneMessage:
    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            ("ALREADY_EXISTS", OK),
            ("INVALID_ARGUMENT", (Result.DEAD, "invalid_argument")),
            ("FAILED_PRECONDITION", (Result.RETRY, "failed_precondition")),
            ("PERMISSION_DENIED", (Result.RETRY, "unauthorized")),
        ],
    )
    def test_concerns_that_one_alone(self, target: Counterpart, status: str, expected: Any) -> None:
        assert outcomes(target, "a", f"answer.{status}", "b") == [OK, expected, OK]
        assert target.box()["calls"] == [3]

    def test_says_how_long_to_wait(self, target: Counterpart) -> None:
        [outcome] = published(target, message(event_type="answer.RESOURCE_EXHAUSTED"))
        assert (outcome.retry_after, outcome.error) == (7.5, "RESOURCE_EXHAUSTED for one")

    def test_that_is_missing_is_no_success(self, target: Counterpart) -> None:
        assert outcomes(target, "a", "silent") == [OK, (Result.RETRY, "no_result")]


class TestTheStatusOfACall:
    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            ("UNAVAILABLE", (Result.OUTAGE, "connection")),
            ("UNAUTHENTICATED", (Result.OUTAGE, "unauthorized")),
            ("RESOURCE_EXHAUSTED", (Result.RETRY, "resource_exhausted")),
        ],
    )
    def test_holds_for_all_and_ends_the_sending(self, target: Counterpart, status: str, expected: Any) -> None:
        options = "&max_message_size=200"
        assert outcomes(target, "a", f"abort.{status}", "b", "c", options=options) == [OK, *[expected] * 3]
        assert target.box()["calls"] == [1, 1]

    @pytest.mark.parametrize(
        ("event_type", "expected"),
        [
            ("abort.INVALID_ARGUMENT", (Result.DEAD, "invalid_argument")),
            ("abort.INTERNAL", (Result.RETRY, "internal")),
            ("raise", (Result.RETRY, "unknown")),
        ],
    )
    def test_that_one_message_may_have_caused_is_for_its_call(
        self, target: Counterpart, event_type: str, expected: Any
    ) -> None:
        """The receiver may have taken some of the call's messages: they are sent again one by one, by the relay."""
        together = [(Result.RETRY, "failed_together")] * 2
        two = 2 * len(grpc_events._request(message(event_type="a"), "/shop")) + 30
        assert outcomes(target, "a", event_type, "b", options=f"&max_message_size={two}") == [*together, OK]
        assert outcomes(target, event_type) == [expected]
        assert target.box()["calls"] == [2, 1, 1]

    def test_only_a_call_that_was_lost_ends_the_connection(self, target: Counterpart) -> None:
        publisher: Any = loaded(target.url(target.place))
        with closing(publisher):
            publisher.publish([message(0)])
            before = publisher._channel.made
            sent_by(publisher, message(1, event_type="abort.RESOURCE_EXHAUSTED"))
            assert publisher._channel.made is before
            sent_by(publisher, message(1, event_type="abort.UNAVAILABLE"))
            assert publisher.publish([message(2)]) == [SENT]
            assert publisher._channel.made is not before


class TestSizes:
    def test_calls_are_no_larger_than_they_may_be(self, target: Counterpart) -> None:
        messages = [message(n, payload=b"x" * 10_000) for n in range(5)]
        size = len(grpc_events._request(messages[0], "/shop"))
        for limit, calls in ((2 * size, [2, 2, 1]), (2 * size - 1, [1] * 5), (size - 1, [1] * 5)):
            assert published(target, *messages, options=f"&max_message_size={limit}") == [SENT] * 5
            assert target.box()["calls"][-len(calls) :] == calls

    @pytest.mark.parametrize(
        ("details", "code"),
        [
            ("SERVER: Received message larger than max (5000000 vs. 4194304)", "too_large"),
            ("gRPC message exceeds maximum size 4194304: 5000000", "too_large"),
            ("the quota is used up: too large a part of it went to tests", "resource_exhausted"),
        ],
    )
    def test_a_size_is_told_from_a_quota(self, details: str, code: str) -> None:
        outcome = grpc_events._outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
        assert (outcome.code, outcome.result is Result.DEAD) == (code, code == "too_large")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate, signed by itself, and its key."""
    return self_signed(tmp_path_factory.mktemp("tls") / "both.pem", "127.0.0.1")


@pytest.fixture(scope="module")
def tls_url(certificate: Path) -> Iterator[str]:
    with Counterpart((certificate,)) as server:
        yield server.url("tls").replace("grpc://", "grpcs://")


class TestTls:
    def test_a_receiver_whose_certificate_is_known(self, tls_url: str, certificate: Path) -> None:
        options = f"&ca_file={certificate}&cert_file={certificate}&key_file={certificate}"
        with closing(loaded(tls_url + options)) as publisher:
            assert publisher.publish([message()]) == [SENT]

    def test_a_file_that_is_not_there_may_come(self, tls_url: str) -> None:
        with closing(loaded(f"{tls_url}&ca_file=/nowhere/ca.pem")) as publisher:
            outcome, dead = sent_by(publisher, message(), message(headers={"n": 5}))
        assert (outcome.result, outcome.code) == (Result.OUTAGE, "connection")
        assert "/nowhere/ca.pem" in str(outcome.error)
        assert dead.code == "bad_headers"
