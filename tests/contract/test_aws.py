"""What the publishers of SQS and SNS write down on the wire, and what they make of each answer."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from outbox_tasks.destinations.aws.publishers import REQUESTS_AT_ONCE
from outbox_tasks.model import LeasedMessage, Result
from tests.conftest import eventually
from tests.contract.conftest import Running
from tests.contract.counterparts.aws import ACCOUNT, REGION, SnsFifo, SqsFifo, values
from tests.contract.counterparts.aws import Sqs as Counterpart
from tests.contract.messages import (
    SENT,
    WHOLE,
    brief,
    loaded,
    message,
    published,
    results,
    settled,
    whole,
    within,
)


def test_writes_the_attributes_of_the_contract(target: Counterpart) -> None:
    headers = {**WHOLE.headers, "tracestate": "v=1", "empty": ""}
    assert published(target, replace(WHOLE, headers=headers)) == [SENT]
    [arrived] = target.raw()
    own = {"content_type": "application/json", "headers": '{"tenant": "t1", "empty": ""}'}
    assert (arrived["Body"], values(arrived)) == ('{"n": 0}', whole("ce_", tracestate="v=1") | own)


def test_never_has_more_than_ten_attributes(target: Counterpart) -> None:
    """SQS refuses the eleventh, which moto doesn't: what is too much moves to the headers that it came from."""
    headers = {**WHOLE.headers, "tracestate": "v=1", "eventid": "e"}
    sent = replace(WHOLE, payload=b"", dataref="s3://bucket/1", headers=headers)
    assert published(target, sent) == [SENT]
    [arrived] = target.raw()
    found = values(arrived)
    assert len(found) == 10
    assert (found["ce_dataref"], found["body_encoding"]) == ("s3://bucket/1", "empty")
    assert json.loads(found["headers"]) == headers


def test_a_body_is_text_as_sqs_allows_it(target: Counterpart) -> None:
    payloads = [b"", b"a\tb\r\n", "😀".encode(), b"\x00", "\uffff".encode()]
    assert published(target, *(message(n, payload=payload) for n, payload in enumerate(payloads))) == [SENT] * 5
    bodies = sorted((arrived["Body"], values(arrived).get("body_encoding", "")) for arrived in target.raw())
    assert bodies == [("-", "empty"), ("77+/", "base64"), ("AA==", "base64"), ("a\tb\r\n", ""), ("😀", "")]


def test_an_attribute_that_sqs_would_refuse_is_dead_before(target: Counterpart) -> None:
    outcomes = published(target, message(0), message(1, key="bell \x07"), message(2, key="", aggregate_id=""))
    assert brief(outcomes) == [(Result.SENT, None), (Result.DEAD, "bad_attributes"), (Result.SENT, None)]
    assert all(value for arrived in target.raw() for value in values(arrived).values())


def test_finds_the_message_for_which_a_whole_batch_was_refused(target: Counterpart) -> None:
    target.url(target.place)
    where = target.client("sqs").get_queue_url(QueueName=target.place)["QueueUrl"]
    target.client("sqs").set_queue_attributes(QueueUrl=where, Attributes={"MaximumMessageSize": "1024"})
    with closing(loaded(target.url_at(target.port))) as publisher:
        outcomes = settled(publisher, *(message(n, payload=b"[%s]" % (b" " * 2000 * (n == 6))) for n in range(9)))
    assert results(outcomes) == [Result.SENT] * 6 + [Result.DEAD] + [Result.SENT] * 2
    assert outcomes[6].code == "too_large"
    assert len(target.raw()) == 8


@pytest.mark.parametrize("kind", [SqsFifo, SnsFifo])
def test_the_key_is_the_group_and_the_id_prevents_a_second_copy(running: Running, kind: type[SqsFifo]) -> None:
    target: Any = running(kind)
    messages = [message(0, key="order:42"), message(1, key="Größe 5"), message(2), message(3, key="order:42")]
    with closing(loaded(target.new_place())) as publisher:
        assert publisher.publish(messages) == [SENT] * 4
        assert publisher.publish(messages[:1]) == [SENT]
    by_id = {
        each["Attributes"]["MessageDeduplicationId"]: each["Attributes"]["MessageGroupId"] for each in target.raw()
    }
    groups = ["order:42", hashlib.sha256("Größe 5".encode()).hexdigest(), messages[2].id, "order:42"]
    assert by_id == {sent.id: group for sent, group in zip(messages, groups, strict=True)}
    assert len(target.raw()) == 4


Answer = tuple[int, dict[str, str], bytes | Iterator[bytes]]


@contextmanager
def service(answer: Callable[[dict[str, Any]], Answer]) -> Iterator[str]:
    """A server that answers requests as told. Yields the destination's URL without the queue's name."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, body = answer(request)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):
                for part in (body,) if isinstance(body, bytes) else body:
                    self.wfile.write(part)

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield f"sqs://test:test@{REGION}/{ACCOUNT}/{{}}?endpoint=http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def refusal(status: int, code: str, text: str = "why") -> Answer:
    kind = {"x-amzn-query-error": f"{code};Sender", "Content-Type": "application/x-amz-json-1.0"}
    return status, kind, json.dumps({"__type": f"com.amazonaws.sqs#{code}", "message": text}).encode()


def taken(request: dict[str, Any], **failed: dict[str, Any]) -> Answer:
    """All were taken, but those that failed, by their payload's number."""
    number = {entry["Id"]: str(json.loads(entry["MessageBody"])["n"]) for entry in request["Entries"]}
    body = {
        "Successful": [{"Id": i, "MessageId": i, "MD5OfMessageBody": ""} for i, n in number.items() if n not in failed],
        "Failed": [{"Id": i, **failed[n]} for i, n in number.items() if failed.get(n)],
    }
    return 200, {}, json.dumps(body).encode()


@pytest.mark.parametrize(
    ("answer", "result", "code"),
    [
        (refusal(400, "ExpiredTokenException"), "outage", "unauthorized"),
        (refusal(400, "AWS.SimpleQueueService.NonExistentQueue"), "outage", "unroutable"),
        (refusal(400, "InvalidParameterValue", "Value x for parameter QueueUrl is invalid"), "outage", "unroutable"),
        (refusal(403, "Throttling"), "retry", "throttled"),
        (refusal(400, "KMS.DisabledException"), "outage", "kms"),
        (refusal(503, "Whatever"), "outage", "unavailable"),
        (refusal(400, "InvalidMessageContents"), "dead", "refused"),
        (refusal(400, "AWS.SimpleQueueService.BatchRequestTooLong"), "dead", "too_large"),
        (refusal(400, "UnsupportedOperation"), "retry", "unsupported_operation"),
        ((404, {}, b"<html>not here</html>"), "retry", None),
        ((200, {}, b"<html>not here</html>"), "retry", None),
        ((200, {}, b"{}"), "retry", "unconfirmed"),
    ],
    ids=lambda value: value[1].get("x-amzn-query-error", value[0]) if isinstance(value, tuple) else None,
)
def test_what_a_refused_request_means(answer: Answer, result: str, code: str | None) -> None:
    with service(lambda _: answer) as url, closing(loaded(url.format("orders"))) as publisher:
        outcomes = settled(publisher, message(0), message(1))
    assert results(outcomes) == [result] * 2
    assert code is None or {outcome.code for outcome in outcomes} == {code}


def test_a_request_has_ten_messages_and_256_kib_at_most() -> None:
    asked: list[int] = []

    def take(request: dict[str, Any]) -> Answer:
        asked.append(len(request["Entries"]))
        return taken(request)

    def padded(*sizes: int) -> list[LeasedMessage]:
        return [message(n, payload=b'{"n": %d}' % n + b" " * size) for n, size in enumerate(sizes)]

    with service(take) as url, closing(loaded(url.format("orders"))) as publisher:
        [(_, size, _)] = [publisher._entry(one) for one in padded(0)]
        room = 131_072 - size
        for sizes, requests in (
            ((0,) * 25, [5, 10, 10]), ((room, room), [2]), ((room, room + 1), [1, 1]), ((300_000, 0), [1, 1])
        ):  # fmt: skip
            asked.clear()
            assert publisher.publish(padded(*sizes)) == [SENT] * len(sizes)
            assert sorted(asked) == requests


@pytest.mark.parametrize(
    ("failed", "result", "code"),
    [
        ({"Code": "InternalError", "SenderFault": False}, "retry", "unavailable"),
        ({"Code": "ThrottlingException", "SenderFault": True}, "retry", "throttled"),
        ({"Code": "SomethingNew", "SenderFault": True}, "dead", "refused"),
        ({"Code": "SomethingNew", "SenderFault": False}, "retry", "something_new"),
        ({"Code": "InvalidParameterValue", "Message": "must be shorter than 1024 bytes", "SenderFault": True},
         "dead", "too_large"),
        ({}, "retry", "unconfirmed"),
    ],
)  # fmt: skip
def test_what_a_refused_entry_means(failed: dict[str, Any], result: str, code: str) -> None:
    """Its neighbours were taken."""
    with service(lambda r: taken(r, **{"1": failed})) as url, closing(loaded(url.format("orders"))) as publisher:
        before, outcome, after = publisher.publish([message(0), message(1), message(2)])
    assert (before, after) == (SENT, SENT)
    assert (outcome.result, outcome.code) == (result, code)


def test_an_outage_is_met_once_and_a_signature_is_not_quoted() -> None:
    """The client doesn't repeat the request, and what would follow isn't sent."""
    asked: list[dict[str, Any]] = []

    def refuse(request: dict[str, Any]) -> Answer:
        asked.append(request)
        return refusal(403, "SignatureDoesNotMatch", "The canonical string: x-amz-security-token:hunter2")

    with service(refuse) as url, closing(loaded(url.format("orders.fifo"))) as publisher:
        for payload, most in (b"1", 1), (b"1" * 600_000, REQUESTS_AT_ONCE):
            asked.clear()
            outcomes = publisher.publish([message(n, payload=payload) for n in range(most + 9)])
            assert {(o.code, o.error) for o in outcomes} == {("unauthorized", "SignatureDoesNotMatch")}
            assert 1 <= len(asked) <= most


def test_an_answer_that_drips_is_not_waited_for_nor_does_it_stop_the_next_messages() -> None:
    """Each byte comes within the client's own timeout."""
    dripping, enough = threading.Event(), threading.Event()
    dripping.set()

    def drops() -> Iterator[bytes]:
        while not enough.wait(0.1):
            yield b" "

    with (
        service(lambda request: (200, {}, drops()) if dripping.is_set() else taken(request)) as url,
        closing(loaded(url.format("orders"), send_timeout=2)) as publisher,
    ):
        try:
            with within(2):
                outcomes = publisher.publish([message(n) for n in range(100)])
            dripping.clear()
            assert publisher.publish([message(0)]) == [SENT]
        finally:
            enough.set()
    assert {(outcome.result, outcome.code) for outcome in outcomes} == {(Result.OUTAGE, "timeout")}


def test_credentials_are_looked_for_again_after_there_were_none_in_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[default]\ncredential_process = sleep 3\n")
    with service(taken) as url:
        bare = url.format("orders").replace("test:test@", "")
        with closing(loaded(bare, send_timeout=2)) as publisher:
            assert brief(publisher.publish([message()])) == [(Result.OUTAGE, "unauthorized")]
            monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
            with within(2):
                assert brief(publisher.publish([message()])) == [(Result.OUTAGE, "timeout")]
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            eventually(lambda: publisher.publish([message()]) == [SENT])
