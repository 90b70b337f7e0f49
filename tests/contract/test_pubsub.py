"""What only Google Cloud Pub/Sub has: its attributes, ordering keys and statuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from grpc import StatusCode

from outbox_tasks.destinations.pubsub.publisher import trouble
from outbox_tasks.local.ports import LOOPBACK
from outbox_tasks.model import Result
from tests.certificates import self_signed
from tests.contract.counterparts.grpc_servers import PROJECT
from tests.contract.counterparts.grpc_servers import PubSub as Counterpart
from tests.contract.messages import SENT, WHOLE, brief, loaded, message, numbers, published, whole
from tests.contract.servers import pubsub_server
from tests.contract.tasks import in_a_process, sent_with

OK = (Result.SENT, None)
UNORDERED = "&ordering=none"


def outcomes(target: Counterpart, *types: str) -> list[tuple[Result, str | None]]:
    """What becomes of messages with these event types."""
    return brief(published(target, *(message(n, event_type=t) for n, t in enumerate(types)), options=UNORDERED))


class TestTheWire:
    def test_the_attributes_of_the_binding_with_the_headers_beside_them(self, target: Counterpart) -> None:
        """A header takes no name that means something. Google's front ends need the topic as a header."""
        target.place += "+b~c%d"
        forged = {"ce-id": "1", "Content-Type": "2", "Goog": "4"}
        with closing(loaded(target.url_at(target.port).replace("%d", "%25d"))) as publisher:
            assert publisher.publish([replace(WHOLE, headers=WHOLE.headers | forged)]) == [SENT]
        [arrived] = target.raw()
        own = {"tenant": "t1", "content-type": "application/json", **{f"h_{n}": v for n, v in forged.items()}}
        assert dict(arrived.attributes) == own | whole("ce-", specversion="1.0", datacontenttype="application/json")
        assert (arrived.data, arrived.ordering_key) == (b'{"n": 0}', "k")
        assert [call["routed"] for call in target.calls()] == [f"projects/{PROJECT}/topics/{target.place}"]


class TestOrder:
    @pytest.mark.parametrize(("options", "calls"), [("", [("", 2), ("a", 1), ("b", 1)]), (UNORDERED, [("", 4)])])
    def test_each_key_has_a_request_of_its_own_unless_there_is_no_order(
        self, target: Counterpart, options: str, calls: list[tuple[str, int]]
    ) -> None:
        keys = ["a", "b", None, None]
        sent = [message(n, key=key) for n, key in enumerate(keys)]
        assert published(target, *sent, options=options) == [SENT] * 4
        assert sorted((call["key"], call["messages"]) for call in target.calls()) == calls
        assert {found.attributes.get("partitionkey") for found in target.received()} == {*keys}

    def test_the_keys_do_not_wait_for_each_other(self, target: Counterpart) -> None:
        started = time.monotonic()
        assert published(target, *(message(n, key=f"{n}", event_type="slow") for n in range(8))) == [SENT] * 8
        assert time.monotonic() - started < 4 * pubsub_server.SLOW  # one after the other they take twice as long


def test_a_time_limit_leaves_nothing_under_way(target: Counterpart, monkeypatch: pytest.MonkeyPatch) -> None:
    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    publisher: Any = loaded(target.url(target.place))
    with closing(publisher):
        assert publisher.publish([message(0)]) == [SENT]
        monkeypatch.setattr(type(publisher), "_send", strike)
        with pytest.raises(KeyboardInterrupt):
            publisher.publish([message(1)])
        monkeypatch.undo()
        assert publisher._channel.made is None, "it would go on with the requests"
        assert publisher.publish([message(2)]) == [SENT]


def test_the_emulators_variable_goes_before_google(target: Counterpart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{target.port}")
    url = f"pubsub://{PROJECT}/{target.place}?endpoint=nowhere.invalid&credentials=/nowhere"
    with closing(loaded(url)) as publisher:
        assert publisher.publish([message()]) == [SENT]
    assert numbers(target) == [0]


class TestTheStatusOfARequest:
    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            ("UNAUTHENTICATED", (Result.OUTAGE, "unauthorized")),
            ("FAILED_PRECONDITION", (Result.OUTAGE, "failed_precondition")),
            ("RESOURCE_EXHAUSTED", (Result.RETRY, "throttled")),
        ],
    )
    def test_holds_for_all_of_its_messages(self, target: Counterpart, status: str, expected: Any) -> None:
        assert outcomes(target, "a", f"abort.{status}", "b") == [expected] * 3
        assert [call["messages"] for call in target.calls()] == [3]

    def test_that_one_message_has_caused_is_for_its_request(self, target: Counterpart) -> None:
        assert outcomes(target, "a", "abort.INVALID_ARGUMENT") == [(Result.RETRY, "failed_together")] * 2
        assert outcomes(target, "abort.INVALID_ARGUMENT") == [(Result.DEAD, "invalid_argument")]
        bad = message(0, key="a", event_type="abort.INVALID_ARGUMENT")
        assert brief(published(target, bad, message(1, key="b"))) == [(Result.DEAD, "invalid_argument"), OK]

    def test_that_the_connection_was_lost_is_not_forgotten_over_a_later_one(self, target: Counterpart) -> None:
        publisher: Any = loaded(target.url(target.place))
        with closing(publisher):
            lost, late = publisher.publish(
                [message(0, key="a", event_type="abort.UNAVAILABLE"), message(1, key="b", event_type="slow")]
            )
            assert (lost.code, late) == ("connection", SENT)
            assert publisher._channel.made is None

    def test_an_answer_without_ids_is_no_success(self, target: Counterpart) -> None:
        assert outcomes(target, "a", "miscounted") == [(Result.RETRY, "unconfirmed")] * 2

    @pytest.mark.parametrize(
        ("status", "details", "result", "code"),
        [
            ("INVALID_ARGUMENT", "The value for request_size is too large. You passed 10000001 in the request, but the "
             "maximum value is 10000000.", Result.DEAD, "too_large"),
            ("RESOURCE_EXHAUSTED", "Quota exceeded for quota metric 'Regional publisher throughput, kB' and limit "
             "'Regional publisher throughput, kB per minute per region'", Result.RETRY, "throttled"),
            ("INVALID_ARGUMENT", "Invalid [topics] name: (name=projects/p/topics/x)", Result.OUTAGE, "unroutable"),
            ("UNAVAILABLE", "Getting metadata from plugin failed with error: ('invalid_grant: Invalid JWT Signature.', "
             "{'error': 'invalid_grant', 'assertion': 'hunter2'})", Result.OUTAGE, "unauthorized"),
        ],
    )  # fmt: skip
    def test_by_the_words_that_google_has_for_it(self, status: str, details: str, result: Result, code: str) -> None:
        outcome = trouble(StatusCode[status], details)
        assert (outcome.result, outcome.code) == (result, code)
        assert "hunter2" not in str(outcome.error)


EMAIL = f"relay@{PROJECT}.iam.gserviceaccount.com"
UNAUTHORIZED, TIMEOUT = ("outage", "unauthorized"), ("outage", "timeout")
DEAD = ("dead", "bad_headers")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate, and the keys of service accounts."""
    directory = tmp_path_factory.mktemp("google")
    self_signed(directory / "cert.pem", "localhost")
    account, other = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    private, public = serialization.PrivateFormat.PKCS8, serialization.PublicFormat.SubjectPublicKeyInfo
    (directory / "public.pem").write_bytes(account.public_key().public_bytes(serialization.Encoding.PEM, public))
    for name, key in (("right", account), ("wrong", other), ("broken", None)):
        pem = key and key.private_bytes(serialization.Encoding.PEM, private, serialization.NoEncryption()).decode()
        facts = {
            "type": "service_account", "project_id": PROJECT, "private_key_id": name, "private_key": pem or "hunter2",
            "client_email": EMAIL, "token_uri": "https://nowhere.invalid/token",
        }  # fmt: skip
        (directory / f"{name}.json").write_text(json.dumps(facts))
    (directory / "garbage.json").write_text("hunter2")
    return directory


@pytest.fixture(scope="module")
def tls_server(files: Path) -> Iterator[Counterpart]:
    with Counterpart((files / "cert.pem", EMAIL, files / "public.pem")) as server:
        yield server


def run(files: Path, task: Any, *args: Any, **env: str) -> Any:
    """What the task returns in a process that knows nobody's credentials but those of its arguments and `env`. What
    gRPC trusts is settled once for all of a process."""
    known = re.compile("GOOGLE|GCE_|PUBSUB|PROXY", re.IGNORECASE)
    plain = {name: value for name, value in os.environ.items() if not known.search(name)}
    plain |= {"HOME": str(files), "NO_GCE_CHECK": "true", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": f"{files}/cert.pem"}
    answer = in_a_process(task, *args, log=files / "log", env={**plain, **env})
    written = repr(answer) + (files / "log").read_text()
    assert "PRIVATE KEY" not in written
    assert "hunter2" not in written
    return answer


def url(server: Counterpart, key: Path | None = None) -> str:
    return f"pubsub://{PROJECT}/orders?endpoint=localhost:{server.port}" + (f"&credentials={key}" if key else "")


def test_only_a_key_that_is_right_signs_and_all_else_is_an_outage(tls_server: Counterpart, files: Path) -> None:
    """Nobody else is asked: the key names a token server that does not exist."""
    names = ["right.json", "wrong.json", "hunter2.json", "garbage.json", "broken.json"]
    cases = [(url(tls_server, files / name), "") for name in names]
    cases += [(url(tls_server), str(files / name)) for name in names] + [(url(tls_server), "")]
    shutil.copy(files / "wrong.json", files / "used.json")
    cases += [(url(tls_server, files / "used.json"), "")]
    outcomes = run(files, sent_with, cases, 5, files / "right.json", files / "used.json")
    good = [("sent", None), DEAD, ("sent", None)]
    bad = [UNAUTHORIZED, DEAD, UNAUTHORIZED]
    assert outcomes == [good, *[bad] * 4, good, *[bad] * 5, bad, [("sent", None)]], "a key that was replaced is found"


def test_a_certificate_that_is_not_trusted_gets_nothing(tls_server: Counterpart, files: Path, tmp_path: Path) -> None:
    other = str(self_signed(tmp_path / "other.pem", "localhost"))
    cases = [(url(tls_server, files / "right.json"), "")]
    [outcomes] = run(files, sent_with, cases, 5, GRPC_DEFAULT_SSL_ROOTS_FILE_PATH=other)
    assert outcomes == [("outage", "connection"), DEAD, ("outage", "connection")]


def test_a_machine_that_says_nothing_takes_no_more_than_the_time_limit(tls_server: Counterpart, files: Path) -> None:
    """Google's library alone would ask the machine's metadata server for nine seconds and more."""
    with socket.create_server((LOOPBACK, 0)) as silent:
        place = f"{LOOPBACK}:{silent.getsockname()[1]}"
        env = {f"GCE_METADATA_{name}": place for name in ("HOST", "IP", "ROOT")}
        [outcomes] = run(files, sent_with, [(url(tls_server), "")], 1, NO_GCE_CHECK="false", **env)
    assert outcomes == [TIMEOUT, DEAD, TIMEOUT]
