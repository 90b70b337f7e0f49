"""What only gRPC has: the service's definition, statuses of calls and of messages, sizes and TLS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import Default

from outbox_tasks.destinations.grpc import publisher as grpc_events
from outbox_tasks.destinations.grpc import receiver
from outbox_tasks.destinations.grpc.receiver import CloudEvent, DeliverRequest, DeliverResponse
from outbox_tasks.model import Result, Step
from outbox_tasks.relay.publishers import Publishers
from tests.certificates import self_signed
from tests.claims import drain_batches
from tests.conftest import MakeStore, Rows
from tests.contract.counterparts.grpc_events import Counterpart
from tests.contract.messages import SENT, loaded, message, numbers, sent_by
from tests.unit.test_linear import soon


def outcomes(target: Counterpart, *types: str, options: str = "") -> list[tuple[Result, str | None]]:
    """What becomes of messages with these event types."""
    with closing(loaded(target.url(target.place) + options)) as publisher:
        ended = publisher.publish([message(n, event_type=event_type) for n, event_type in enumerate(types)])
    return [(outcome.result, outcome.code) for outcome in ended]


class TestTheWire:
    def test_an_event_in_the_protobuf_format_with_the_headers_beside_it(self, target: Counterpart) -> None:
        sent = message(key="k", aggregate_id="a", headers={"traceparent": "00-a-b-01", "X-Tenant": "t1"})
        with closing(loaded(target.url(target.place))) as publisher:
            assert publisher.publish([sent]) == [SENT]
        [event] = target.events()
        assert (event.id, event.source, event.spec_version, event.type) == (sent.id, "/shop", "1.0", "order.created")
        assert event.WhichOneof("data") == "binary_data"
        assert event.binary_data == b'{"n": 0}'
        kinds = {name: value.WhichOneof("attr") for name, value in event.attributes.items()}
        assert kinds == {
            "time": "ce_timestamp", "subject": "ce_string", "partitionkey": "ce_string", "traceparent": "ce_string",
            "datacontenttype": "ce_string",
        }  # fmt: skip
        assert target.told()["messages"][0]["headers"] == {"X-Tenant": "t1"}

    def test_the_compiled_definition_is_that_of_the_files(self) -> None:
        """The files are what receivers compile, so that the compiled one must not stay behind."""
        found = {}
        for kind in (CloudEvent, DeliverRequest, DeliverResponse):
            found |= _fields(kind.DESCRIPTOR.file.message_types_by_name.values())
        assert found == _written()
        [service] = DeliverRequest.DESCRIPTOR.file.services_by_name.values()
        [method] = service.methods
        assert f"/{service.full_name}/{method.name}" == receiver.DELIVER
        assert [method.input_type.name, method.output_type.name] == ["DeliverRequest", "DeliverResponse"]

    def test_the_application_may_have_these_types_too(self) -> None:
        assert CloudEvent.DESCRIPTOR.file.pool is not Default()

    def test_a_text_that_is_not_unicode_is_dead(self, target: Counterpart) -> None:
        with closing(loaded(target.url(target.place))) as publisher:
            sent, dead = publisher.publish([message(0), message(1, headers={"a": "\ud800"})])
        assert sent == SENT
        assert (dead.result, dead.code) == (Result.DEAD, "not_unicode")


def _fields(messages: Any) -> dict[str, int]:
    """`message.field` → its number, without the entries that stand for maps."""
    found: dict[str, int] = {}
    for kind in messages:
        if not kind.GetOptions().map_entry:
            found |= {f"{kind.name}.{field.name}": field.number for field in kind.fields}
            found |= _fields(kind.nested_types)
    return found


def _written() -> dict[str, int]:
    """The same, read from the text of the files."""
    found: dict[str, int] = {}
    for file in sorted(Path(str(receiver.__file__)).parent.glob("*.proto")):
        within: list[str] = []
        for line in re.sub(r"//.*|/\*.*?\*/", "", file.read_text()).splitlines():
            if opened := re.match(r"\s*(message|oneof|service)\s+(\w+)\s*{", line):
                within.append(opened[2] if opened[1] == "message" else within[-1] if within else "")
            elif field := re.match(r"\s+(?:map<[^>]+>|(?:repeated )?[\w.]+)\s+(\w+)\s*=\s*(\d+);", line):
                found[f"{within[-1]}.{field[1]}"] = int(field[2])
            elif line.strip() == "}":
                within.pop()
    return found


class TestTheAnswerForOneMessage:
    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            ("OK", (Result.SENT, None)),
            ("ALREADY_EXISTS", (Result.SENT, None)),
            ("INVALID_ARGUMENT", (Result.DEAD, "invalid_argument")),
            ("FAILED_PRECONDITION", (Result.RETRY, "failed_precondition")),
            ("RESOURCE_EXHAUSTED", (Result.RETRY, "resource_exhausted")),
            ("UNAVAILABLE", (Result.RETRY, "connection")),
            ("PERMISSION_DENIED", (Result.RETRY, "unauthorized")),
            ("NOT_FOUND", (Result.RETRY, "unroutable")),
        ],
    )
    def test_concerns_that_one_alone(self, target: Counterpart, status: str, expected: Any) -> None:
        assert outcomes(target, "a", f"answer.{status}", "b") == [(Result.SENT, None), expected, (Result.SENT, None)]
        assert target.told()["calls"] == [3]

    def test_says_how_long_to_wait(self, target: Counterpart) -> None:
        with closing(loaded(target.url(target.place))) as publisher:
            [outcome] = publisher.publish([message(event_type="answer.RESOURCE_EXHAUSTED")])
        assert (outcome.retry_after, outcome.error) == (7.5, "RESOURCE_EXHAUSTED for one")

    def test_that_is_missing_is_no_success(self, target: Counterpart) -> None:
        assert outcomes(target, "a", "silent") == [(Result.SENT, None), (Result.RETRY, "no_result")]

    def test_may_be_a_text_that_once_took_hours_to_redact(
        self, target: Counterpart, new_store: MakeStore, rows: Rows
    ) -> None:
        for kind in ("a", "long", "b"):
            rows.insert(event_type=kind)
        store = new_store(destinations={"orders": {"url": target.url(target.place)}})
        with closing(Publishers(store.settings)) as publishers, soon():
            steps = drain_batches(store, publishers)
        assert steps == {Step.SENT: 2, Step.LATER: 1}
        assert [(row.event_type, row.last_error_code, row.last_error) for row in rows.hot()] == [
            ("long", "internal", "a://")
        ]


class TestTheStatusOfACall:
    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            ("UNAVAILABLE", (Result.OUTAGE, "connection")),
            ("DEADLINE_EXCEEDED", (Result.OUTAGE, "timeout")),
            ("UNAUTHENTICATED", (Result.OUTAGE, "unauthorized")),
            ("PERMISSION_DENIED", (Result.OUTAGE, "unauthorized")),
            ("UNIMPLEMENTED", (Result.OUTAGE, "unroutable")),
            ("NOT_FOUND", (Result.OUTAGE, "unroutable")),
            ("RESOURCE_EXHAUSTED", (Result.RETRY, "resource_exhausted")),
            ("ABORTED", (Result.RETRY, "aborted")),
            ("CANCELLED", (Result.RETRY, "cancelled")),
        ],
    )
    def test_holds_for_all_and_ends_the_sending(self, target: Counterpart, status: str, expected: Any) -> None:
        assert outcomes(target, "a", f"abort.{status}", "b", "c", options="&max_message_size=200") == [
            (Result.SENT, None), expected, expected, expected,
        ]  # fmt: skip
        assert target.told()["calls"] == [1, 1]

    @pytest.mark.parametrize(
        ("event_type", "expected"),
        [
            ("abort.INVALID_ARGUMENT", (Result.DEAD, "invalid_argument")),
            ("abort.FAILED_PRECONDITION", (Result.RETRY, "failed_precondition")),
        ],
    )
    def test_that_one_message_may_have_caused_is_for_that_one(
        self, target: Counterpart, event_type: str, expected: Any
    ) -> None:
        types = ["a"] * 7 + [event_type] + ["b"] * 8
        assert outcomes(target, *types) == [(Result.SENT, None)] * 7 + [expected] + [(Result.SENT, None)] * 8
        assert target.told()["calls"] == [16, 8, 4, 4, 2, 2, 1, 1, 8]
        assert numbers(target) == [*range(7), *range(8, 16)]

    @pytest.mark.parametrize(("event_type", "code"), [("abort.INTERNAL", "internal"), ("raise", "unknown")])
    def test_that_may_have_come_in_the_middle_of_it_repeats_nothing(
        self, target: Counterpart, event_type: str, code: str
    ) -> None:
        """The receiver may have taken some of the call's messages: they are sent again one by one, by the relay."""
        assert outcomes(target, "a", event_type, "b") == [(Result.RETRY, "failed_together")] * 3
        assert target.told()["calls"] == [3]
        assert outcomes(target, event_type) == [(Result.RETRY, code)]

    def test_a_call_that_was_refused_leaves_the_connection(self, target: Counterpart) -> None:
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
        with closing(loaded(target.url(target.place) + "&max_message_size=10000")) as publisher:
            assert publisher.publish([message(n, payload=b"x" * 3000) for n in range(10)]) == [SENT] * 10
        assert target.told()["calls"] == [3, 3, 3, 1]

    def test_more_than_the_receiver_takes_goes_in_parts(self, target: Counterpart) -> None:
        """Its limit is 1 MiB, and ours is not known to it."""
        with closing(loaded(target.url(target.place))) as publisher:
            assert publisher.publish([message(n, payload=b"x" * 300_000) for n in range(8)]) == [SENT] * 8
        assert target.told()["calls"] == [2, 2, 2, 2]

    def test_a_single_one_above_our_limit_is_the_receivers_to_judge(self, target: Counterpart) -> None:
        assert outcomes(target, "a", "b", options="&max_message_size=1") == [(Result.SENT, None)] * 2

    @pytest.mark.parametrize(
        ("details", "code"),
        [
            ("SERVER: Received message larger than max (5000000 vs. 4194304)", "too_large"),
            ("gRPC message exceeds maximum size 4194304: 5000000", "too_large"),
            ("Error, decoded message length too large: found 5000000 bytes, the limit is: 4194304 bytes", "too_large"),
            ("the request rate exceeds the maximum", "resource_exhausted"),
            ("the quota is used up: too large a part of it went to tests", "resource_exhausted"),
        ],
    )
    def test_a_size_is_told_from_a_quota(self, details: str, code: str) -> None:
        outcome = grpc_events._outcome(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
        assert (outcome.code, outcome.result is Result.DEAD) == (code, code == "too_large")


class TestUrls:
    def test_a_plus_in_a_token_is_a_plus(self, target: Counterpart) -> None:
        target.place = "a+b/c=="
        assert outcomes(target, "a") == [(Result.SENT, None)]
        assert numbers(target) == [0]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of `receiver.test`, signed by itself, and its key."""
    return self_signed(tmp_path_factory.mktemp("tls") / "both.pem", "receiver.test")


@pytest.fixture(scope="module")
def tls_server(certificate: Path) -> Iterator[Counterpart]:
    with Counterpart(certificate, certificate) as made:
        made.place = "tls"
        yield made


class TestTls:
    def url(self, server: Counterpart, options: str) -> str:
        return server.url(server.place).replace("grpc://", "grpcs://") + options

    def test_a_receiver_whose_certificate_is_known(self, tls_server: Counterpart, certificate: Path) -> None:
        options = f"&authority=receiver.test&ca_file={certificate}&cert_file={certificate}&key_file={certificate}"
        with closing(loaded(self.url(tls_server, options))) as publisher:
            assert publisher.publish([message()]) == [SENT]

    def test_a_file_that_is_not_there_may_come(self, tls_server: Counterpart) -> None:
        with closing(loaded(self.url(tls_server, "&ca_file=/nowhere/ca.pem"))) as publisher:
            outcome, dead = sent_by(publisher, message(), message(headers={"n": 5}))
        assert (outcome.result, outcome.code) == (Result.OUTAGE, "connection")
        assert "/nowhere/ca.pem" in str(outcome.error)
        assert dead.code == "bad_headers"
